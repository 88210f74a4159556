// The container that holds a pod's namespaces: waits, and reaps processes whose parents have ended.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) { _exit(0); }

static void reap(int number) {
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction ending = {.sa_handler = end}, reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  sigaction(SIGINT, &ending, 0);
  sigaction(SIGTERM, &ending, 0);
  sigaction(SIGCHLD, &reaping, 0);
  for (;;) pause();
}
