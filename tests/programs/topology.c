/* Reads the files of each device as a program does that places traffic by topology: the path of its bus
 * device, the NUMA node, and what the port says. Prints a line for each, then how many paths differ. */
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = 32 };

static char *text(const char *device, const char *path)
{
	static char lines[8][256];
	static unsigned next;
	char name[PATH_MAX], *line = lines[next++ % 8];
	snprintf(name, sizeof name, "/sys/class/infiniband/%s/%s", device, path);
	FILE *file = fopen(name, "r");
	if (!file || !fgets(line, 256, file)) {
		perror(name);
		exit(1);
	}
	fclose(file);
	line[strcspn(line, "\n")] = 0;
	return line;
}

int main(void)
{
	char *paths[DEVICES_MAX];
	int count, differ = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	for (int i = 0; list && i < count && i < DEVICES_MAX; i++) {
		const char *name = ibv_get_device_name(list[i]);
		char link[PATH_MAX];
		snprintf(link, sizeof link, "/sys/class/infiniband/%s/device", name);
		paths[i] = realpath(link, NULL);
		if (!paths[i]) {
			perror(link);
			return 1;
		}
		/* NCCL takes functions of one card, and virtual functions, for one: these digits do not count. */
		char *end = paths[i] + strlen(paths[i]);
		end[-1] = end[-3] = end[-4] = '0';
		int known = 0;
		for (int other = 0; other < i; other++)
			known |= !strcmp(paths[other], paths[i]);
		differ += !known;
		struct ibv_context *context = ibv_open_device(list[i]);
		struct ibv_port_attr port;
		union ibv_gid gid;
		if (!context || ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, 0, &gid))
			return 1;
		char shown[64] = "";
		for (int byte = 0; byte < 16; byte += 2)
			sprintf(shown + strlen(shown), "%s%02x%02x", byte ? ":" : "", gid.raw[byte], gid.raw[byte + 1]);
		if (strcmp(shown, text(name, "ports/1/gids/0"))) {
			printf("%s: GID 0 is %s\n", name, shown);
			return 1;
		}
		printf("%s on %s, node %s, %s, %s, %s, active speed %d width %d\n", name,
		       text(name, "ports/1/gid_attrs/ndevs/0"), text(name, "device/numa_node"),
		       text(name, "ports/1/rate"), text(name, "ports/1/link_layer"),
		       text(name, "ports/1/gid_attrs/types/0"), port.active_speed, port.active_width);
	}
	printf("%d devices with %d paths\n", count, differ);
	return 0;
}
