// The yardstick of the communicator: Gloo's all-reduce over TCP on loopback, in its new ring, its
// old chunked ring and its halving-doubling. usage: gloo_yardstick RANK SIZE FOLDER BATCHES
// BYTES...
//
// One process a rank; they meet in FOLDER. Rank 0 prints one JSON line for each size and algorithm,
// with the time of one all-reduce (float, sum) in each of BATCHES batches. Only built where Gloo's
// headers are.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace
{

int64_t now_ns()
{
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// As many operations a batch as comm_load does, but no more than BATCH_NS take: the new ring needs
// up to a second for some sizes. All ranks agree on the number by a sum.
constexpr double BATCH_NS = 30e6;

using Context = std::shared_ptr<gloo::rendezvous::Context>;

template <typename Run> size_t batch_count(const Context &context, size_t bytes, const Run &run)
{
    size_t most = (size_t{4} << 20) / (bytes + 4096);
    most = most < 2 ? 2 : most > 200 ? 200 : most;
    int64_t begun = now_ns();
    run();
    run();
    float each = float(now_ns() - begun) / 2;
    gloo::AllreduceHalvingDoubling<float> sum(context, {&each}, 1);
    sum.run();
    size_t n = size_t(BATCH_NS / (double(each) / context->size));
    return n < 1 ? 1 : n > most ? most : n;
}

template <typename Run>
void measure(const char *name, const Context &context, size_t bytes, int batches, const Run &run)
{
    size_t count = batch_count(context, bytes, run);
    for (size_t i = 0; i < count / 2; i++)
        run();
    std::string line;
    for (int b = 0; b < batches; b++) {
        int64_t begun = now_ns();
        for (size_t i = 0; i < count; i++)
            run();
        line += (b == 0 ? "" : ",") + std::to_string((now_ns() - begun) / int64_t(count));
    }
    if (context->rank == 0) {
        printf("{\"name\":\"%s\",\"bytes\":%zu,\"ns\":[%s]}\n", name, bytes, line.c_str());
        fflush(stdout);
    }
}

void one_size(const Context &context, const std::string &algorithm, size_t bytes, int batches)
{
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    if (algorithm == "ring") {
        auto ring = [&] {
            gloo::AllreduceOptions o(context);
            o.setOutput(data.data(), data.size());
            o.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
            o.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(
                &gloo::sum<float>));
            gloo::allreduce(o);
        };
        measure("gloo-ring", context, bytes, batches, ring);
    } else if (algorithm == "chunked") {
        gloo::AllreduceRingChunked<float> chunked(context, {data.data()}, int(data.size()));
        measure("gloo-chunked", context, bytes, batches, [&] { chunked.run(); });
    } else {
        gloo::AllreduceHalvingDoubling<float> halving(context, {data.data()}, int(data.size()));
        measure("gloo-halving", context, bytes, batches, [&] { halving.run(); });
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 7) {
        fprintf(stderr, "usage: gloo_yardstick RANK SIZE FOLDER BATCHES ALGORITHM BYTES...\n");
        return 2;
    }
    int rank = std::stoi(argv[1]), size = std::stoi(argv[2]);
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(argv[3]);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(store, device);
    for (int i = 6; i < argc; i++)
        one_size(context, argv[5], std::stoul(argv[i]), std::stoi(argv[4]));
    return 0;
}
