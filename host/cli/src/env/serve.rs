//! `prl env serve-python`: serves a Python environment over HTTP, outside the sandbox. Owns how Python is started; the server
//! is `prl_env.serve`, which this process becomes.

use super::{ServePython, build};
use crate::failure::Failure;
use crate::sdk;
use std::os::unix::process::CommandExt;

/// Runs the command; it only comes back where Python cannot be started.
pub fn run(asked: &ServePython) -> Result<u8, Failure> {
    let sdk = sdk::python(None)?;
    // Whether there is a Python with the SDK is told in our words.
    build::python(&sdk, &["-c", "import prl_env.serve"])?;
    let mut command = build::interpreter(&sdk)?;
    command.args(["-m", "prl_env.serve"]).arg(&asked.env).args(["--host", &asked.host]);
    command.args(["--port", &asked.port.to_string(), "--expire", &asked.expire.to_string()]);
    let error = command.exec();
    Err(build::no_interpreter(&command, &error))
}
