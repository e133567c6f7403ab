/* NCCL, opened at run time: what a communicator needs of it, declared here so that building wants
 * no header of NCCL. A test compares these declarations with nccl.h where that is installed.
 *
 * Source: NCCL's user guide, "Communicator Creation and Management Functions", 2.19 to 2.28. */
#ifndef MUSTER_SDK_NCCL_LIB_H
#define MUSTER_SDK_NCCL_LIB_H

#include <muster/muster.h>

enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_UNHANDLED_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7
};
enum nccl_op {
    NCCL_SUM = 0,
    NCCL_MAX = 2,
    NCCL_MIN = 3
};
enum nccl_dtype {
    NCCL_UINT8 = 1,
    NCCL_INT32 = 2,
    NCCL_INT64 = 4,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64 = 8
};

#define NCCL_VERSION_MIN 21900 /* From here on the configuration below is whole. */

struct nccl_id {
    char bytes[128];
};

/* ncclConfig_t as 2.19 has it; later ones only add behind it, and know by `size` what is there. */
struct nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
};
#define NCCL_UNDEF_INT INT32_MIN
#define NCCL_CONFIG_NON_BLOCKING                                                                   \
    {                                                                                              \
        sizeof(struct nccl_config), 0xcafebeef, NCCL_VERSION_MIN, 0, NCCL_UNDEF_INT,               \
            NCCL_UNDEF_INT, NCCL_UNDEF_INT, NULL, NCCL_UNDEF_INT                                   \
    }

/* Communicators and streams are pointers; results, types and operations are ints. */
struct nccl_lib {
    void *handle;
    int version; /* 22809 is 2.28.9. */
    int (*get_version)(int *ret);
    int (*get_unique_id)(struct nccl_id *ret);
    int (*init)(void **ret, int size, struct nccl_id id, int rank, struct nccl_config *config);
    int (*init_scalable)(void **ret,
                         int size,
                         int rank,
                         int id_count,
                         struct nccl_id *ids,
                         struct nccl_config *config); /* NULL before 2.23. */
    int (*get_async_error)(void *comm, int *ret);
    int (*finalize)(void *comm);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    const char *(*error_string)(int result);
    const char *(*last_error)(void *comm);
    int (*all_reduce)(
        const void *send, void *recv, size_t count, int dtype, int op, void *comm, void *stream);
    int (*broadcast)(
        const void *send, void *recv, size_t count, int dtype, int root, void *comm, void *stream);
    int (*all_gather)(
        const void *send, void *recv, size_t count, int dtype, void *comm, void *stream);
    int (*reduce_scatter)(
        const void *send, void *recv, size_t count, int dtype, int op, void *comm, void *stream);
};

/* Opens the library (MUSTER_NCCL_LIBRARY, else libnccl.so.2). 0; -ENOENT: not there; -ENOTSUP:
 * older than 2.19. */
int nccl_lib_open(struct nccl_lib *ret, struct muster_error *err);
/* Takes a zeroed one. The library itself stays loaded: its threads may still run. */
void nccl_lib_close(struct nccl_lib *n);

/* "2.28.9" into ret. */
void nccl_lib_version_text(int version, char ret[32]);
/* Sets "NCCL: what: its words" and returns the errno that fits the result. */
int nccl_lib_error(const struct nccl_lib *n,
                   int result,
                   const char *what,
                   struct muster_error *err);

/* A muster_id_maker: arg is the struct nccl_lib. */
int nccl_lib_make_id(void *arg, void *ret_id, size_t id_bytes, struct muster_error *err);

#endif
