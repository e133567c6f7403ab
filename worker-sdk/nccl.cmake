# The NCCL side: handing out ids, and the backend over NCCL and the CUDA driver, both opened at run time; no header of theirs is
# needed to build it. MUSTER_WITH_NCCL=OFF leaves the backend out, and keeps the hand-out.
target_sources(muster_sdk PRIVATE src/id.c src/id_marks.c)
if(NOT MUSTER_WITH_NCCL STREQUAL "OFF")
    target_sources(muster_sdk PRIVATE src/nccl.c src/nccl_cause.c src/nccl_start.c src/nccl_lib.c src/nccl_free.c src/nccl_stream.c src/cuda_lib.c)
    target_compile_definitions(muster_sdk PRIVATE MUSTER_SDK_NCCL)
    target_link_libraries(muster_sdk PRIVATE ${CMAKE_DL_LIBS})
endif()
