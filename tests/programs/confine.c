/*
 * confine PROGRAM...: runs PROGRAM under a seccomp filter. The filter refuses (EPERM) the system calls that
 * container engines refuse by default, and some more.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int refused[] = {
	SYS_bpf,     SYS_perf_event_open, SYS_ptrace,  SYS_io_uring_setup, SYS_mount,    SYS_unshare,
	SYS_setns,   SYS_keyctl,	  SYS_add_key, SYS_userfaultfd,	   SYS_mlock,    SYS_mlockall,
	SYS_mlock2,  SYS_mbind,		  SYS_kcmp,    SYS_chroot,	   SYS_pivot_root, SYS_process_vm_readv,
	SYS_process_vm_writev,
};
#define REFUSED (sizeof(refused) / sizeof(refused[0]))

int main(int argc, char **argv)
{
	struct sock_filter filter[2 * REFUSED + 8];
	size_t n = 0;

	if (argc < 2)
		return 2;
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < REFUSED; i++) {
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i], 0, 1);
		filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	}
	/* socket(AF_PACKET, ...) */
	filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
	filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_PACKET, 0, 1);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);

	struct sock_fprog program = { .len = n, .filter = filter };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("seccomp");
		return 2;
	}
	if (syscall(SYS_unshare, 0) != -1 || errno != EPERM) {
		fprintf(stderr, "the filter refuses nothing\n");
		return 2;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 127;
}
