// What C++ in a backend leaves to the loader: static and thread-local objects with destructors, a symbol that is
// unique in the process, exceptions, threads. Each destructor leaves its mark in a folder.

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include <pthread.h>
#include <unistd.h>

// An inline static of a template: g++ makes it STB_GNU_UNIQUE.
template <class T> struct Shared {
    inline static std::atomic<int> count{0};
};

namespace {

std::string folder;
std::mutex marks;

void leave(const char *mark) {
    std::lock_guard<std::mutex> lock(marks);
    if (!folder.empty()) {
        std::ofstream(folder + "/marks", std::ios::app) << mark << '\n';
    }
}

// Made after the two above, and so destroyed before them.
struct Static {
    std::string text = std::string(100, 'x');
    ~Static() { leave("static object"); }
} object;

struct Local {
    int touched = 0;
    ~Local() { leave("thread-local object"); }
};
thread_local Local local;

int caught() {
    try {
        throw std::runtime_error(object.text);
    } catch (const std::exception &e) {
        return e.what() == object.text ? 1 : 0;
    }
}

} // namespace

// Uses everything on this thread and on another one, which it joins. Where `keep` is set, it starts a third, which ends
// when there is a file "until" in the folder. Gives 1.
extern "C" int parts_begin(const char *where, int keep) {
    folder = where;
    local.touched += 1;
    Shared<int>::count += 1;
    std::thread([] { local.touched += Shared<int>::count; }).join();
    if (keep) {
        std::thread([until = folder + "/until"] {
            pthread_setname_np(pthread_self(), "cpp-kept");
            while (access(until.c_str(), F_OK) != 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
            }
        }).detach();
    }
    return caught();
}
