/* leaked_channel: a completion channel that is never destroyed */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context); /* finds: leaked-channel */

	CHECK(channel != NULL && ibv_close_device(context) == 0);
	return 0;
}
