/* correct_device_list: opens devices while a list or a context has them */
#include "misuse.h"

int main(void)
{
	struct ibv_device **first = ibv_get_device_list(NULL), **second = ibv_get_device_list(NULL);
	struct ibv_context *context, *another;

	ibv_free_device_list(first);
	CHECK((context = ibv_open_device(second[0])) != NULL);
	ibv_free_device_list(second);
	/* An open context keeps its device. */
	CHECK((another = ibv_open_device(context->device)) != NULL);
	CHECK(ibv_close_device(context) == 0 && ibv_close_device(another) == 0);
	return 0;
}
