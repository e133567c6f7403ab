# The trainer's parts: kernels, options, data, weight files.
if(TARGET trainer_net)
    foreach(t net options data state)
        mu_unit(trainer.${t} SOURCES trainer_${t}.c LINK trainer_net)
    endforeach()
endif()
