//! Functions that programs link against and that are not made here: each answers `CUDA_ERROR_NOT_SUPPORTED`.

macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, unreachable_pub)]
            pub extern "C" fn $name() -> $crate::ffi::CUresult {
                $crate::ffi::enter(stringify!($name), || Err($crate::code::Code::NOT_SUPPORTED))
            }
        )*
    };
}

unsupported! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy cuArrayGetDescriptor_v2
    cuCtxGetCacheConfig cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxSetCacheConfig cuCtxSetLimit cuCtxSetSharedMemConfig
    cuDestroyExternalMemory cuExternalMemoryGetMappedBuffer cuImportExternalMemory
    cuGraphAddKernelNode cuGraphAddKernelNode_v2 cuGraphDebugDotPrint cuGraphGetEdges cuGraphKernelNodeGetParams
    cuGraphKernelNodeGetParams_v2 cuGraphNodeGetType
    cuIpcCloseMemHandle cuIpcGetEventHandle cuIpcGetMemHandle cuIpcOpenEventHandle cuIpcOpenMemHandle_v2
    cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy
    cuMemAdvise cuMemAllocManaged cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemPrefetchAsync
    cuDeviceSetMemPool cuMemAdvise_v2 cuMemPoolCreate cuMemPoolDestroy cuMemPrefetchAsync_v2
    cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize
    cuMemcpy2D_v2 cuMemcpy2DAsync_v2 cuMemcpy3D_v2 cuMemcpyAtoH_v2 cuMemcpyHtoA_v2
    cuModuleLoadFatBinary cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxPotentialBlockSize
    cuStreamAttachMemAsync cuStreamWaitValue32_v2 cuStreamWaitValue64_v2 cuStreamWriteValue32_v2 cuStreamWriteValue64_v2
    cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc
    cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc
}
