# Data parallel and checkpoints.
target_sources(muster_sdk PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src/ddp.c ${CMAKE_CURRENT_SOURCE_DIR}/src/ddp_check.c
    ${CMAKE_CURRENT_SOURCE_DIR}/src/checkpoint.c ${CMAKE_CURRENT_SOURCE_DIR}/src/checkpoint_files.c)
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/ddp.c PROPERTIES COMPILE_OPTIONS -O3) # Vectors in divide.
