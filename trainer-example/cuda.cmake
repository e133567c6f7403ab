# The network on a GPU. Included where the build has CUDA's headers; wants nvcc and cuBLAS's header as well, and without them the
# trainer is built for CPUs alone (MUSTER_WITH_CUDA=ON makes that an error). nvcc is called as a plain compiler: with CMake's CUDA
# language every program that links the trainer's network would be linked by nvcc. cuBLAS itself is opened at run time.
find_program(TRAINER_NVCC nvcc HINTS ${CUDA_INCLUDE_DIR}/../bin)
find_library(TRAINER_CUDART cudart_static HINTS ${CUDA_INCLUDE_DIR}/../lib64 ${CUDA_INCLUDE_DIR}/../lib)
if(NOT TRAINER_NVCC OR NOT TRAINER_CUDART OR NOT EXISTS ${CUDA_INCLUDE_DIR}/cublas_v2.h)
    if(MUSTER_WITH_CUDA STREQUAL "ON")
        message(FATAL_ERROR "nvcc, libcudart_static.a or cublas_v2.h is missing: install the CUDA Toolkit, or set MUSTER_WITH_CUDA=OFF")
    endif()
    message(STATUS "nvcc, libcudart_static.a or cublas_v2.h is missing: the trainer is built for CPUs alone")
    return()
endif()
set(TRAINER_CUDA_ARCH "80;90" CACHE STRING "Compute capabilities to compile for; GPUs that come later translate the last one")
set(gpu_flags)
foreach(arch ${TRAINER_CUDA_ARCH})
    list(APPEND gpu_flags -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()
list(GET TRAINER_CUDA_ARCH -1 last_arch)
list(APPEND gpu_flags -gencode=arch=compute_${last_arch},code=compute_${last_arch})
if(NOT MUSTER_WITH_NCCL STREQUAL "OFF")
    list(APPEND gpu_flags -DTRAINER_NCCL)
endif()
if(MUSTER_WERROR)
    list(APPEND gpu_flags --Werror=all-warnings)
endif()
# Without C++'s run-time library: one thread starts kernels, and nothing throws.
# Each product is rounded before it is added, as on the CPU (adamw.c says why); cuBLAS does as it likes.
set(cuda_object ${CMAKE_CURRENT_BINARY_DIR}/cuda.o)
add_custom_command(OUTPUT ${cuda_object}
    COMMAND ${TRAINER_NVCC} -std=c++17 -O3 --fmad=false ${gpu_flags} -Xcompiler=-fPIC,-fno-exceptions,-fno-threadsafe-statics,-Wall,-Wextra,-Wno-unused-parameter
        -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/worker-sdk/include -MD -MF ${cuda_object}.d
        -c ${CMAKE_CURRENT_LIST_DIR}/cuda.cu -o ${cuda_object}
    DEPENDS ${CMAKE_CURRENT_LIST_DIR}/cuda.cu DEPFILE ${cuda_object}.d COMMENT "Compiling trainer-example/cuda.cu" VERBATIM)
set_source_files_properties(${cuda_object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
target_sources(trainer_net PRIVATE ${cuda_object})
target_link_libraries(trainer_net PUBLIC ${TRAINER_CUDART} ${CMAKE_DL_LIBS} rt)
target_compile_definitions(trainer PRIVATE TRAINER_CUDA)
