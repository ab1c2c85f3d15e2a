/* leaked_failing: a program that fails for another reason leaves a channel; exit: 7 */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context); /* finds: leaked-channel */

	CHECK(channel != NULL);
	if (EITHER(0, 1))
		CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_close_device(context) == 0);
	return EITHER(7, 0);
}
