// A program that brings its own copy of libibverbs: linked under a name with a hash, as auditwheel does, or
// (-DBY_PATH) opened by the path in its first argument. Prints the name of the first device, and opens it.
#include <dlfcn.h>
#include <stdio.h>

struct ibv_device;
struct ibv_context;

#ifdef BY_PATH
static struct ibv_device **(*get_list)(int *);
static const char *(*get_name)(struct ibv_device *);
static struct ibv_context *(*open_device)(struct ibv_device *);

static int load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		puts(dlerror());
		return 0;
	}
	*(void **)&get_list = dlsym(library, "ibv_get_device_list");
	*(void **)&get_name = dlsym(library, "ibv_get_device_name");
	*(void **)&open_device = dlsym(library, "ibv_open_device");
	return get_list && get_name && open_device;
}
#else
struct ibv_device **ibv_get_device_list(int *count);
const char *ibv_get_device_name(struct ibv_device *device);
struct ibv_context *ibv_open_device(struct ibv_device *device);

#define get_list ibv_get_device_list
#define get_name ibv_get_device_name
#define open_device ibv_open_device
#define load(path) ((void)(path), 1)
#endif

int main(int argc, char **argv)
{
	struct ibv_device **list;
	int count = 0;

	if (!load(argc > 1 ? argv[1] : ""))
		return 1;
	list = get_list(&count);
	if (!list || !count) {
		puts("no device");
		return 0;
	}
	printf("device %s\n", get_name(list[0]));
	return !open_device(list[0]);
}
