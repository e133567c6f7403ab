/* The second yardstick of the communicator: MPI_Allreduce. usage: mpiexec -n N mpi_yardstick
 * BATCHES BYTES...; prints as comm_load does. Only built where mpicc is; knows nothing of muster.
 */
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

/* As comm_load. */
static size_t batch_count(size_t bytes)
{
    size_t n = ((size_t)4 << 20) / (bytes + 4096);
    return n < 2 ? 2 : n > 200 ? 200 : n;
}

static void run(float *data, size_t count, size_t times)
{
    for (size_t i = 0; i < times; i++)
        MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void measure(int rank, size_t bytes, int batches)
{
    size_t times = batch_count(bytes);
    float *data = calloc(bytes / sizeof(float) + 1, sizeof(float));
    if (data == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    run(data, bytes / sizeof(float), (times + 1) / 2);
    if (rank == 0)
        printf("{\"name\":\"mpich\",\"bytes\":%zu,\"ns\":[", bytes);
    for (int b = 0; b < batches; b++) {
        double begun = MPI_Wtime();
        run(data, bytes / sizeof(float), times);
        if (rank == 0)
            printf("%s%.0f", b == 0 ? "" : ",", (MPI_Wtime() - begun) * 1e9 / (double)times);
    }
    if (rank == 0) {
        printf("]}\n");
        fflush(stdout);
    }
    free(data);
}

int main(int argc, char **argv)
{
    int rank = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 2; i < argc; i++)
        measure(rank, strtoul(argv[i], NULL, 10), (int)strtol(argv[1], NULL, 10));
    MPI_Finalize();
    return 0;
}
