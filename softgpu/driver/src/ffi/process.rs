//! What concerns the driver as a whole: error texts, addresses of its functions.

use std::ffi::{c_char, c_int, c_ulonglong};

use super::raw::{In, Out};
use super::{CUresult, functions};
use crate::code::{Code, Result, describe};

/// The exported function that a header of that version means by a plain name.
fn find(symbol: &str, version: c_int) -> Option<usize> {
    // These two have plain names that newer headers map to the ones with a version only from 12.3 or 13.0 on.
    let newest_is_plain = matches!(symbol, "cuStreamGetCaptureInfo" | "cuEventElapsedTime") && version < 13000;
    let all = all();
    let get = |name: &str| all.iter().find(|entry| entry.0 == name).map(|entry| entry.1);
    match symbol {
        "cuStreamGetCaptureInfo" if newest_is_plain && version >= 11030 => return get("cuStreamGetCaptureInfo_v2"),
        "cuEventElapsedTime" if newest_is_plain => return get("cuEventElapsedTime"),
        "cuCtxCreate" => return get(if version >= 13000 { "cuCtxCreate_v4" } else { "cuCtxCreate_v2" }),
        "cuGraphInstantiate" if version >= 12000 => return get("cuGraphInstantiateWithFlags"),
        _ => {}
    }
    get(&format!("{symbol}_v3")).or_else(|| get(&format!("{symbol}_v2"))).or_else(|| get(symbol))
}

/// All exported functions of the driver's API.
fn all() -> Vec<(&'static str, usize)> {
    let lists = [
        list(),
        super::context::list(),
        super::graph::list(),
        super::launch::list(),
        super::memory::list(),
        super::stream::list(),
    ];
    lists.concat()
}

fn get_address(symbol: In<c_char>, function: Out<usize>, version: c_int, status: Out<c_int>) -> Result {
    let symbol = symbol.text()?.to_str().map_err(|_| Code::INVALID_VALUE)?;
    function.check()?;
    match find(symbol, version) {
        Some(address) => {
            status.put_if(0);
            function.put(address)
        }
        None => {
            status.put_if(1);
            function.put(0)?;
            if status.check().is_ok() { Ok(()) } else { Err(Code::NOT_FOUND) }
        }
    }
}

functions! { list:
    fn cuGetErrorName(error: CUresult, text: Out<In<c_char>>) {
        text.check()?;
        match describe(error) {
            Some((name, _)) => text.put(name.into()),
            None => text.put(In::NULL).and(Err(Code::INVALID_VALUE)),
        }
    }
    fn cuGetErrorString(error: CUresult, text: Out<In<c_char>>) {
        text.check()?;
        match describe(error) {
            Some((_, words)) => text.put(words.into()),
            None => text.put(In::NULL).and(Err(Code::INVALID_VALUE)),
        }
    }
    fn cuGetProcAddress(symbol: In<c_char>, function: Out<usize>, version: c_int, _flags: c_ulonglong) {
        get_address(symbol, function, version, Out::NULL)
    }
    fn cuGetProcAddress_v2(
        symbol: In<c_char>, function: Out<usize>, version: c_int, _flags: c_ulonglong, status: Out<c_int>
    ) {
        get_address(symbol, function, version, status)
    }
    fn cuProfilerStart() {
        crate::driver::driver().map(drop)
    }
    fn cuProfilerStop() {
        crate::driver::driver().map(drop)
    }
}
