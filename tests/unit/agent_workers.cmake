# The workers' room: starting and ending processes, what they are given, who outlives whom.
mu_unit(agent.workers.group SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/work_group.c LINK agent_workers)
add_test(NAME unit.agent.workers.group.no_cgroup COMMAND unit_agent_workers_group no-cgroup)
set_tests_properties(unit.agent.workers.group.no_cgroup PROPERTIES LABELS unit TIMEOUT 60)
mu_unit(agent.workers.plan SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/work_plan.c LINK agent_workers)
mu_unit(agent.workers.lines SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/work_lines.c LINK agent_lines)
mu_unit(agent.workers.xid SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/work_xid.c LINK agent_lines)
mu_unit(agent.workers.numa SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/work_numa.c LINK agent_workers)
mu_unit(agent.workers.report SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/work_report.c LINK agent_workers)
mu_unit(agent.workers.warden SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/work_warden.c LINK agent_workers)
add_test(NAME unit.agent.workers.warden.no_cgroup COMMAND unit_agent_workers_warden no-cgroup)
set_tests_properties(unit.agent.workers.warden.no_cgroup PROPERTIES LABELS unit TIMEOUT 60)

# Not for every day: ctest -L stress. Also prints figures (work_storm figures), in a release build.
add_executable(work_storm ${CMAKE_CURRENT_SOURCE_DIR}/work_storm.c)
target_compile_definitions(work_storm PRIVATE _GNU_SOURCE)
target_link_libraries(work_storm PRIVATE mu_flags agent_workers)
add_test(NAME stress.agent.workers.storm COMMAND work_storm storm 1000 256)
set_tests_properties(stress.agent.workers.storm PROPERTIES LABELS stress TIMEOUT 1800 RUN_SERIAL ON)
