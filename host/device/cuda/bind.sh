#!/usr/bin/env bash
# Writes sys.rs anew: the driver functions that bindings.txt lists, with the types that they need, from NVIDIA's cuda.h. Nobody needs
# this to build tutti; it is run when bindings.txt changes. It takes a CUDA 12.9 cuda.h (the Python package
# nvidia-cuda-runtime-cu12 has one), bindgen (cargo install bindgen-cli) and libclang.
#
#     host/device/cuda/bind.sh path/to/include/cuda.h
set -euo pipefail
header=$(readlink -f "$1")
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
bindgen "$header" --output sys.rs --rust-target 1.89 --rust-edition 2024 --dynamic-loading Library \
    --allowlist-function "($(paste -sd'|' bindings.txt))" --allowlist-type 'CU(stream_flags|event_flags)_enum' \
    --allowlist-var 'CU_MEMHOSTALLOC_(PORTABLE|DEVICEMAP)' --default-enum-style consts --no-prepend-enum-name --no-doc-comments \
    --no-layout-tests --use-core --wrap-unsafe-ops \
    --raw-line '//! The CUDA driver API as C declares it. Written by bind.sh; do not edit.' \
    --raw-line '' \
    --raw-line '#![allow(clippy::all, clippy::undocumented_unsafe_blocks, dead_code, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unreachable_pub)]'
rustfmt --edition 2024 --config-path ../../../rustfmt.toml sys.rs
