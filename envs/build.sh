#!/bin/sh
# Builds the environments in this folder into WASM components, envs/NAME.wasm, and what stands in for served ones,
# host/bridge/bridge.wasm, under the name `bridge`.
#
#   envs/build.sh [NAME]...           rebuilds the committed files
#   envs/build.sh --check [NAME]...   builds into the target folder and compares interface and behaviour with the
#                                     committed files, which stay as they are
#
# Needs a WASM standard library, in this order:
#   1. rustup target add wasm32-unknown-unknown
#   2. Debian's rustc-web, cargo-web and rust-web-src, which build it from source; rust-lld comes from rustup's
#      toolchain, or from Debian's lld
# PRL_WASM_TARGET_DIR sets the target folder of the WASM builds (default: target/wasm).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
target=${PRL_WASM_TARGET_DIR:-$root/target/wasm}
triple=wasm32-unknown-unknown

check=no
if [ "${1:-}" = --check ]; then
    check=yes
    shift
fi
if [ $# -eq 0 ]; then
    for manifest in envs/*/Cargo.toml; do
        set -- "$@" "$(basename "$(dirname "$manifest")")"
    done
    set -- "$@" bridge
fi

# usage: package NAME ; its package
package() { if [ "$1" = bridge ]; then echo prl-bridge; else echo "$1"; fi; }
# usage: committed NAME ; its committed component
committed() { if [ "$1" = bridge ]; then echo host/bridge/bridge.wasm; else echo "envs/$1.wasm"; fi; }

for name in "$@"; do
    [ "$name" = bridge ] || [ -f "envs/$name/Cargo.toml" ] ||
        { echo "envs/build.sh: there is no envs/$name/Cargo.toml" >&2; exit 2; }
done

# Panic texts name source files: relative to the repository or to the registry, whatever machine builds them.
remap="--remap-path-prefix=$root=."
for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
    remap="$remap --remap-path-prefix=$sources=crates"
done

# usage: build PACKAGE CARGO... ; small code, and the same whatever profile the host is built with
build() {
    made=$1
    shift
    env CARGO_TARGET_DIR="$target" CARGO_PROFILE_RELEASE_OPT_LEVEL=s CARGO_PROFILE_RELEASE_LTO=true \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 CARGO_PROFILE_RELEASE_PANIC=abort CARGO_PROFILE_RELEASE_STRIP=true \
        RUSTFLAGS="$remap" "$@" rustc --release --target $triple -p "$made" --lib --crate-type cdylib
}

sysroot=$(rustc --print sysroot)
if [ -d "$sysroot/lib/rustlib/$triple/lib" ]; then
    module() { build "$1" cargo; }
elif [ -x /usr/bin/cargo ] && [ -d "$(/usr/bin/rustc --print sysroot)/lib/rustlib/src/rust/library" ]; then
    lld=$(find "$sysroot" -name rust-lld -type f | head -n 1)
    [ -n "$lld" ] || lld=$(command -v wasm-ld || command -v lld || true)
    [ -n "$lld" ] || { echo "envs/build.sh: no rust-lld in $sysroot and no wasm-ld on the path" >&2; exit 2; }
    module() {
        build "$1" RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER="$lld" \
            CARGO_UNSTABLE_BUILD_STD=std,panic_abort /usr/bin/cargo
    }
else
    echo "envs/build.sh: no standard library for $triple. Run: rustup target add $triple" >&2
    echo "  (or, on Debian: apt-get install --no-install-recommends rustc-web cargo-web rust-web-src)" >&2
    exit 2
fi

# All of the workspace, so that the host's dependencies are built with the features they have anyway.
cargo build --release --quiet --workspace --example component
component() { "${CARGO_TARGET_DIR:-$root/target}/release/examples/component" "$@"; }
for name in "$@"; do
    module "$(package "$name")"
    built=$target/$name.wasm
    component encode "$target/$triple/release/$(package "$name" | tr - _).wasm" "$built"
    if [ $check = no ]; then
        cp "$built" "$(committed "$name")"
        echo "$(committed "$name"): $(wc -c < "$built") bytes"
    elif [ "$name" = bridge ]; then
        component compare-bridge "$(committed "$name")" "$built"
    else
        component compare "$(committed "$name")" "$built"
    fi
done
