/* freed_device_list: opens a device of a list that it has freed */
#include "misuse.h"

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL), *device = list[0];
	struct ibv_context *context;

#ifndef FIXED
	ibv_free_device_list(list);
#endif
	context = ibv_open_device(device); /* finds: use-after-destroy */
	CHECK(context != NULL);
#ifdef FIXED
	ibv_free_device_list(list);
#endif
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
