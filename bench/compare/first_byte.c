/* SPDX-License-Identifier: Apache-2.0 */
/* first_byte SOURCE START_NS TIMEOUT_MS ADDRESS:PORT... : open-loop clients of one arm.
 *
 * Standard input has when each connection begins, one a line, in nanoseconds after START_NS of
 * CLOCK_MONOTONIC. Nobody waits for anybody: a connection begins then, whatever became of those
 * before it. It asks "WHO" when it is established, and ends with the first bytes of the answer.
 * With several targets connections go to them in turn. Standard output has a line for each:
 *
 *     RESULT ANSWER PORT LATE_NS CONNECT_NS FIRST_NS
 *
 * RESULT is "ok" or what went wrong, ANSWER the first word that came or "-", PORT its own. Times
 * count from the moment at which the connection was to begin, so what this process was late
 * (LATE_NS) is in them too. What did not happen is -1.
 *
 * In C, because Python takes longer for an event than the differences that are to be seen.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL
#define NS_PER_MS 1000000LL
/* A timer is late by up to so much; the rest is polled. */
#define SPIN_NS 100000LL
#define MAX_CONNECTIONS 1000000
#define EVENTS 64
#define ANSWER_MAX 15
#define NEVER (-1)

static const char QUESTION[] = "WHO\n";

enum result {
	OPEN,
	OK,
	REFUSED,
	RESET,
	CLOSED,
	TIMEOUT,
	FAILED
};
static const char *const RESULTS[] = {"open",   "ok",      "refused", "reset",
				      "closed", "timeout", "failed"};

struct connection {
	long long due_ns; /* of CLOCK_MONOTONIC */
	long long late_ns;
	long long connect_ns;
	long long first_ns;
	int fd;
	int port;
	enum result result;
	char answer[ANSWER_MAX + 1];
};

static struct connection *all;
static long count, begun, ended;

static void die(const char *what)
{
	fprintf(stderr, "first_byte: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void refuse(const char *what, const char *text)
{
	fprintf(stderr, "first_byte: %s '%s'\n", what, text);
	exit(2);
}

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static struct sockaddr_in parse(const char *text, int with_port)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	char host[INET_ADDRSTRLEN] = "";
	unsigned int port = 0;
	int length = 0;
	int found = sscanf(text, "%15[0-9.]:%5u%n", host, &port, &length);

	if (!with_port)
		length = (int)strlen(host);
	if (found != 1 + with_port || text[length] || port > 65535 ||
	    inet_pton(AF_INET, host, &address.sin_addr) != 1)
		refuse(with_port ? "expected ADDRESS:PORT, not" : "expected an address, not", text);
	address.sin_port = htons((unsigned short)port);
	return address;
}

static long long parse_number(const char *text)
{
	char *end;
	long long number = strtoll(text, &end, 10);

	if (end == text || *end || number < 0)
		refuse("expected a number, not", text);
	return number;
}

static void read_plan(long long start_ns)
{
	long long offset_ns, before_ns = 0;

	all = calloc(MAX_CONNECTIONS, sizeof(*all));
	if (!all)
		die("memory");
	while (scanf("%lld", &offset_ns) == 1) {
		if (count == MAX_CONNECTIONS || offset_ns < before_ns)
			refuse("expected ascending times, at most a million, not", "that");
		before_ns = offset_ns;
		all[count++] = (struct connection){
			.due_ns = start_ns + offset_ns,
			.connect_ns = NEVER,
			.first_ns = NEVER,
			.fd = -1,
			.answer = "-",
		};
	}
	if (!feof(stdin))
		refuse("expected a number in each line of", "standard input");
}

static int own_port(int fd)
{
	struct sockaddr_in address = {};
	socklen_t size = sizeof(address);

	getsockname(fd, (struct sockaddr *)&address, &size);
	return ntohs(address.sin_port);
}

static void finish(struct connection *one, enum result result)
{
	one->result = result;
	if (one->fd >= 0) {
		one->port = own_port(one->fd);
		close(one->fd);
	}
	one->fd = -1;
	ended++;
}

static enum result failure(int error)
{
	switch (error) {
	case ECONNREFUSED:
		return REFUSED;
	case ECONNRESET:
	case EPIPE:
		return RESET;
	case ETIMEDOUT:
		return TIMEOUT;
	default:
		return FAILED;
	}
}

static void begin(int epoll, struct connection *one, const struct sockaddr_in *source,
		  const struct sockaddr_in *target)
{
	struct epoll_event event = {.events = EPOLLOUT, .data.ptr = one};
	int yes = 1;

	one->late_ns = now_ns() - one->due_ns;
	one->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (one->fd < 0)
		die("socket");
	setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	/* The port is chosen with the target known, so other targets' ports do not count. */
	setsockopt(one->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof(yes));
	if (bind(one->fd, (const struct sockaddr *)source, sizeof(*source)))
		die("bind to the source address");
	if (connect(one->fd, (const struct sockaddr *)target, sizeof(*target)) &&
	    errno != EINPROGRESS)
		finish(one, failure(errno));
	else if (epoll_ctl(epoll, EPOLL_CTL_ADD, one->fd, &event))
		die("epoll_ctl");
}

static void established(int epoll, struct connection *one)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
	socklen_t size = sizeof(int);
	int error = 0;

	if (getsockopt(one->fd, SOL_SOCKET, SO_ERROR, &error, &size) || error) {
		finish(one, failure(error));
		return;
	}
	one->connect_ns = now_ns() - one->due_ns;
	if (send(one->fd, QUESTION, sizeof(QUESTION) - 1, MSG_NOSIGNAL) < 0)
		finish(one, failure(errno));
	else if (epoll_ctl(epoll, EPOLL_CTL_MOD, one->fd, &event))
		die("epoll_ctl");
}

static void answered(struct connection *one)
{
	ssize_t length = recv(one->fd, one->answer, ANSWER_MAX, 0);

	if (length < 0 && errno == EAGAIN)
		return;
	if (length <= 0) {
		strcpy(one->answer, "-");
		finish(one, length ? failure(errno) : CLOSED);
		return;
	}
	one->first_ns = now_ns() - one->due_ns;
	one->answer[length] = 0;
	one->answer[strcspn(one->answer, " \r\n")] = 0;
	finish(one, OK);
}

/* Connections end out of order, but their time runs out in order. */
static void expire(long long timeout_ns)
{
	static long oldest;
	long long now = now_ns();

	for (; oldest < begun; oldest++) {
		if (all[oldest].result != OPEN)
			continue;
		if (now < all[oldest].due_ns + timeout_ns)
			return;
		finish(&all[oldest], TIMEOUT);
	}
}

static void wait_and_serve(int epoll)
{
	struct epoll_event events[EVENTS];
	struct timespec wait = {};
	long long left_ns = 10 * NS_PER_MS;
	int number;

	if (begun < count && all[begun].due_ns - now_ns() - SPIN_NS < left_ns)
		left_ns = all[begun].due_ns - now_ns() - SPIN_NS;
	if (left_ns > 0)
		wait.tv_nsec = left_ns;
	number = epoll_pwait2(epoll, events, EVENTS, &wait, NULL);
	if (number < 0 && errno != EINTR)
		die("epoll_pwait2");
	for (int at = 0; at < number; at++) {
		struct connection *one = events[at].data.ptr;

		if (one->connect_ns == NEVER)
			established(epoll, one);
		else
			answered(one);
	}
}

int main(int argc, char **argv)
{
	struct sched_param priority = {.sched_priority = 1};
	struct sockaddr_in source, *targets;
	long long start_ns, timeout_ns;
	long targets_count = argc - 4;
	int epoll;

	if (targets_count < 1)
		refuse("expected SOURCE START_NS TIMEOUT_MS ADDRESS:PORT...; see", argv[0]);
	source = parse(argv[1], 0);
	start_ns = parse_number(argv[2]);
	timeout_ns = parse_number(argv[3]) * NS_PER_MS;
	targets = calloc((size_t)targets_count, sizeof(*targets));
	if (!targets)
		die("memory");
	for (long at = 0; at < targets_count; at++)
		targets[at] = parse(argv[4 + at], 1);
	read_plan(start_ns);
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		die("epoll_create1");
	/* What is measured is to be late, not who measures; it needs little time. Without the
	 * privilege it goes on all the same.
	 */
	prctl(PR_SET_TIMERSLACK, 1);
	sched_setscheduler(0, SCHED_FIFO, &priority);

	while (ended < count) {
		while (begun < count && now_ns() >= all[begun].due_ns) {
			begin(epoll, &all[begun], &source, &targets[begun % targets_count]);
			begun++;
		}
		expire(timeout_ns);
		wait_and_serve(epoll);
	}
	for (long at = 0; at < count; at++)
		printf("%s %s %d %lld %lld %lld\n", RESULTS[all[at].result], all[at].answer,
		       all[at].port, all[at].late_ns, all[at].connect_ns, all[at].first_ns);
	return 0;
}
