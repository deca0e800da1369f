"""The module that becomes the component: readies the sandbox, imports the environment, and makes it once with its
defaults, all before the snapshot is taken. The order is that of `prl_env_layout`."""

import importlib

import prl_env_build as build  # written by the builder
import prl_env_layout as layout
import prl_env_sandbox as sandbox

sandbox.open_up()
sandbox.stand_ins(build.STAND_INS)
sandbox.modules()
layout.compile_all(build.ROOTS)
layout.fill_holes()

from prl_env.definition import find
from prl_env.engine import Engine
from prl_env.guest import exports

sandbox.no_network()
sandbox.stage("importing it")
module = importlib.import_module(build.MODULE)
sandbox.further(build.MODULES, build.STANDARD)
sandbox.whole_packages(build.BAKE, build.SKIP)
layout.done()
sandbox.files(build.FOLDER, build.FILES)
sandbox.package_files(build.DATA, build.SKIP)
sandbox.seal()
sandbox.stage("making it with its default arguments")
exports.ENGINE = Engine(find(module), build.IMPORTS)
exports.warm_up(sandbox.stage)
sandbox.close_up()

Environment = exports.Environment
