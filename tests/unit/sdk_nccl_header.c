/* Promise: what libmuster declares of NCCL and CUDA is what their headers say. */
#include <stddef.h>

#include <cuda.h>
#include <nccl.h>

/* nccl.h has macros of these names, which the library does not see. */
#undef NCCL_UNDEF_INT
#include "worker-sdk/src/nccl/nccl_lib.h"

#include "worker-sdk/src/nccl/cuda_lib.h"

#include "tests/unit/unit.h"

_Static_assert(sizeof(ncclResult_t) == sizeof(int), "results travel as int");
_Static_assert(sizeof(ncclDataType_t) == sizeof(int), "types travel as int");
_Static_assert(sizeof(ncclRedOp_t) == sizeof(int), "operations travel as int");
_Static_assert(sizeof(CUresult) == sizeof(int) && sizeof(CUdevice) == sizeof(int), "ints");
_Static_assert(sizeof(CUdeviceptr) == sizeof(uint64_t), "device addresses have 64 bits");
_Static_assert(sizeof(struct nccl_id) == sizeof(ncclUniqueId), "an id");
_Static_assert(_Alignof(struct nccl_id) == _Alignof(ncclUniqueId), "an id, passed by value");

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_UNHANDLED_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_MIN, ncclMin);
SAME(NCCL_UINT8, ncclUint8);
SAME(NCCL_INT32, ncclInt32);
SAME(NCCL_INT64, ncclInt64);
SAME(NCCL_FLOAT32, ncclFloat32);
SAME(NCCL_FLOAT64, ncclFloat64);
SAME(NCCL_UNDEF_INT, NCCL_CONFIG_UNDEF_INT);
SAME(NCCL_VERSION_MIN, NCCL_VERSION(2, 19, 0));
SAME(CUDA_LIB_OK, CUDA_SUCCESS);
SAME(CUDA_LIB_NOT_READY, CUDA_ERROR_NOT_READY);

#define PLACE(ours, theirs)                                                                        \
    _Static_assert(offsetof(struct nccl_config, ours) == offsetof(ncclConfig_t, theirs), #ours)
PLACE(size, size);
PLACE(magic, magic);
PLACE(version, version);
PLACE(blocking, blocking);
PLACE(cga_cluster_size, cgaClusterSize);
PLACE(min_ctas, minCTAs);
PLACE(max_ctas, maxCTAs);
PLACE(net_name, netName);
PLACE(split_share, splitShare);
_Static_assert(sizeof(struct nccl_config) <= sizeof(ncclConfig_t), "later ones only add");

static void test_config_has_the_magic_of_the_header(void **state)
{
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    struct nccl_config ours = NCCL_CONFIG_NON_BLOCKING;
    assert_int_equal(ours.magic, theirs.magic);
    assert_int_equal(ours.blocking, 0);
    assert_int_equal(ours.size, sizeof ours);
    assert_int_equal(ours.cga_cluster_size, theirs.cgaClusterSize);
    assert_null(ours.net_name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_has_the_magic_of_the_header),
    };
    return cmocka_run_group_tests_name("sdk.nccl_header", tests, NULL, NULL);
}
