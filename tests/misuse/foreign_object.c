/* foreign_object: a structure of the program is passed as a region */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_mr own = { .context = context };

	CHECK(ibv_dereg_mr(&own) != 0); /* finds: foreign-object */
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
