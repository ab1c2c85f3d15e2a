// The copy of libibverbs that bundled.c brings: it finds no device, as rdma-core's without a driver.
#include <stdlib.h>

void **ibv_get_device_list(int *count)
{
	*count = 0;
	return calloc(1, sizeof(void *));
}

const char *ibv_get_device_name(void *device)
{
	return device;
}

void *ibv_open_device(void *device)
{
	return device;
}
