/* Loads one program of an object file by libbpf, and nothing else of it: libbpf_load OBJECT PROGRAM.
 * Maps are not pinned. Ends with status 0 if the kernel took the program. */
#include <bpf/libbpf.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int quiet(enum libbpf_print_level level, const char *format, va_list values)
{
	return level == LIBBPF_WARN ? vfprintf(stderr, format, values) : 0;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: libbpf_load OBJECT PROGRAM\n");
		return 2;
	}
	libbpf_set_print(quiet);
	struct bpf_object *object = bpf_object__open_file(argv[1], NULL);
	if (!object)
		return 1;
	struct bpf_program *program;
	int found = 0;
	bpf_object__for_each_program(program, object) {
		int chosen = strcmp(bpf_program__name(program), argv[2]) == 0;
		bpf_program__set_autoload(program, chosen);
		found |= chosen;
		if (chosen && bpf_program__type(program) == BPF_PROG_TYPE_UNSPEC)
			bpf_program__set_type(program, BPF_PROG_TYPE_XDP);
	}
	struct bpf_map *map;
	bpf_object__for_each_map(map, object)
		bpf_map__set_pin_path(map, NULL);
	return found && bpf_object__load(object) == 0 ? 0 : 1;
}
