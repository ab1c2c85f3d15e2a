/* leaked_context: a device that is never closed */
#include "misuse.h"

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]); /* finds: leaked-context */

	CHECK(context != NULL);
	ibv_free_device_list(list);
	return 0;
}
