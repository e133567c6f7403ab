/* muster doctor: becomes the program that examines, which links what muster itself does not need.
 */
#ifndef MUSTER_LAUNCHER_DOCTOR_H
#define MUSTER_LAUNCHER_DOCTOR_H

/* With the arguments that muster had. Returns only where that failed: exit status 1. */
int cli_doctor(char *const *argv);

#endif
