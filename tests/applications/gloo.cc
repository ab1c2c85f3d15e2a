// Allreduce between two ranks of gloo over its ibverbs transport; each rank checks what it gets.
// gloo RANK DIRECTORY
#include <gloo/allreduce_ring.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

int main(int, char **words) {
    constexpr int count = 1 << 18, rounds = 20;
    const int rank = atoi(words[1]);
    gloo::transport::ibverbs::attr attr;
    attr.name = "roxie0";
    attr.port = 1;
    attr.index = 0;
    auto device = gloo::transport::ibverbs::CreateDevice(attr);
    auto store = gloo::rendezvous::FileStore(words[2]);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
    context->connectFullMesh(store, device);
    std::vector<float> data(count);
    gloo::AllreduceRing<float> allreduce(context, {data.data()}, count);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) data[i] = static_cast<float>(rank + i % 100 + round);
        allreduce.run();
        for (int i = 0; i < count; i++)
            if (data[i] != static_cast<float>(1 + 2 * (i % 100 + round))) return 1;
    }
    // The last message of a ring is not waited for, and its buffer must not be destroyed before.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    puts("data right");
    return 0;
}
