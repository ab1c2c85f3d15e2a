/*
 * again COMMAND ...: lists the devices with the interfaces of their first GIDs, at the start and after each
 *     command. The devices of the start stay open.
 */
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>

#include <infiniband/verbs.h>

static void list(int number)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	printf("%d:", number);
	for (int i = 0; devices && devices[i]; i++) {
		struct ibv_context *context = ibv_open_device(devices[i]);
		char name[IF_NAMESIZE] = "none";
		struct ibv_gid_entry entry;

		if (context && !ibv_query_gid_ex(context, 1, 0, &entry, 0))
			if_indextoname(entry.ndev_ifindex, name);
		printf(" %s=%s", ibv_get_device_name(devices[i]), name);
		if (context && number)
			ibv_close_device(context);
	}
	printf("\n");
	if (devices)
		ibv_free_device_list(devices);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	list(0);
	for (int i = 1; i < argc; i++) {
		if (system(argv[i]))
			return 1;
		list(i);
	}
	return 0;
}
