mu_unit(rendezvous.job SOURCES job_table.c LINK job)
mu_unit(agent.life SOURCES life_table.c LINK life)
mu_unit(agent.hang SOURCES life_hang.c LINK life)
