/* Two processes: the child listens and receives one message, the parent connects and sends it. */
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT "hello, RDMA"

static char port[8];

static void check(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(1);
    }
}

/* Creates an end point on 127.0.0.1 with the queues for one message. */
static struct rdma_cm_id *end_point(int flags)
{
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .sq_sig_all = 1,
    };
    struct rdma_cm_id *id;
    check(rdma_getaddrinfo("127.0.0.1", port, &hints, &found), "rdma_getaddrinfo");
    check(rdma_create_ep(&id, found, NULL, &attr), "rdma_create_ep");
    rdma_freeaddrinfo(found);
    return id;
}

/* Receives the message; writes a byte to `ready` when clients may connect. */
static int server(int ready)
{
    struct rdma_cm_id *listener = end_point(RAI_PASSIVE), *id;
    static char buffer[64];
    struct ibv_wc wc;
    check(rdma_listen(listener, 1), "rdma_listen");
    check(write(ready, "", 1) != 1, "write");
    check(rdma_get_request(listener, &id), "rdma_get_request");
    struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));
    check(mr == NULL, "rdma_reg_msgs");
    check(rdma_post_recv(id, NULL, buffer, sizeof(buffer), mr), "rdma_post_recv");
    check(rdma_accept(id, NULL), "rdma_accept");
    check(rdma_get_recv_comp(id, &wc) != 1 || wc.status != IBV_WC_SUCCESS, "rdma_get_recv_comp");
    printf("received: %s\n", buffer);
    rdma_disconnect(id);
    return strcmp(buffer, TEXT) != 0;
}

int main(void)
{
    static char text[] = TEXT;
    struct ibv_wc wc;
    int ready[2], status;
    char byte;
    snprintf(port, sizeof(port), "%d", 20000 + getpid() % 10000);
    check(pipe(ready), "pipe");
    pid_t child = fork();
    check(child < 0, "fork");
    if (child == 0)
        return server(ready[1]);
    /* The read ends without a byte if the server fails. */
    close(ready[1]);
    check(read(ready[0], &byte, 1) != 1, "read");
    struct rdma_cm_id *id = end_point(0);
    struct ibv_mr *mr = rdma_reg_msgs(id, text, sizeof(text));
    check(mr == NULL, "rdma_reg_msgs");
    check(rdma_connect(id, NULL), "rdma_connect");
    check(rdma_post_send(id, NULL, text, sizeof(text), mr, 0), "rdma_post_send");
    check(rdma_get_send_comp(id, &wc) != 1 || wc.status != IBV_WC_SUCCESS, "rdma_get_send_comp");
    /* Both ends disconnect: each waits for the other. */
    rdma_disconnect(id);
    check(waitpid(child, &status, 0) != child, "waitpid");
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
