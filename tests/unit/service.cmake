# Service mode: which jobs are here, when to connect, output as records; a submission made into a command line.
mu_unit(agent.service.book SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/service_book.c LINK service_book)
mu_unit(agent.service.record SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/service_record.c LINK service_book)
mu_unit(agent.service.spec SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/service_spec.c LINK agent_service)
