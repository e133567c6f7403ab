# The communicator and its backend over sockets. The reductions are loops for the vector units.
target_sources(muster_sdk PRIVATE src/comm.c src/tcp.c src/tcp_run.c src/tcp_fail.c src/tcp_plan.c src/tcp_reduce.c src/tcp_link.c
    src/tcp_mesh.c src/tcp_meet.c)
set_source_files_properties(src/tcp_reduce.c PROPERTIES COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O3>)
