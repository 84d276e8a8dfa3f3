/* LD_PRELOAD, with libnss_wrapper.so: one thread at a time looks a user or a group up.
 *
 * nss_wrapper keeps what it has read of its two files in one place without a lock, and reads a file again when its time
 * has changed. Two threads of a daemon that look names up just after a user was added end it with a segmentation fault.
 * `next` finds nss_wrapper's function, which stands behind this library in the order of loading.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <grp.h>
#include <pthread.h>
#include <pwd.h>

static pthread_mutex_t one_at_a_time = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static void lock(void) { pthread_mutex_lock(&one_at_a_time); }

static void unlock(void) { pthread_mutex_unlock(&one_at_a_time); }

/* A child has one thread only. Its parent's thread holds the lock, and only the thread that holds it can release it. */
static void make_again(void) { one_at_a_time = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; }

__attribute__((constructor)) static void keep_free_in_children(void) { pthread_atfork(lock, unlock, make_again); }

#define LOCKED(result_type, name, parameters, arguments)                \
    result_type name parameters {                                       \
        lock();                                                         \
        result_type(*next) parameters = dlsym(RTLD_NEXT, #name);        \
        result_type answer = next arguments;                            \
        unlock();                                                       \
        return answer;                                                  \
    }

#define LOCKED_WITHOUT_RESULT(name)                                     \
    void name(void) {                                                   \
        lock();                                                         \
        void (*next)(void) = dlsym(RTLD_NEXT, #name);                   \
        next();                                                         \
        unlock();                                                       \
    }

LOCKED(struct passwd *, getpwnam, (const char *user), (user))
LOCKED(struct passwd *, getpwuid, (uid_t uid), (uid))
LOCKED(struct passwd *, getpwent, (void), ())
LOCKED(struct group *, getgrnam, (const char *group), (group))
LOCKED(struct group *, getgrgid, (gid_t gid), (gid))
LOCKED(struct group *, getgrent, (void), ())
LOCKED(int, getpwnam_r,
       (const char *restrict user, struct passwd *restrict found, char *restrict buffer, size_t size,
        struct passwd **restrict result),
       (user, found, buffer, size, result))
LOCKED(int, getpwuid_r,
       (uid_t uid, struct passwd *restrict found, char *restrict buffer, size_t size, struct passwd **restrict result),
       (uid, found, buffer, size, result))
LOCKED(int, getpwent_r,
       (struct passwd *restrict found, char *restrict buffer, size_t size, struct passwd **restrict result),
       (found, buffer, size, result))
LOCKED(int, getgrnam_r,
       (const char *restrict group, struct group *restrict found, char *restrict buffer, size_t size,
        struct group **restrict result),
       (group, found, buffer, size, result))
LOCKED(int, getgrgid_r,
       (gid_t gid, struct group *restrict found, char *restrict buffer, size_t size, struct group **restrict result),
       (gid, found, buffer, size, result))
LOCKED(int, getgrent_r,
       (struct group *restrict found, char *restrict buffer, size_t size, struct group **restrict result),
       (found, buffer, size, result))
LOCKED(int, getgrouplist, (const char *user, gid_t group, gid_t *groups, int *count), (user, group, groups, count))
LOCKED(int, initgroups, (const char *user, gid_t group), (user, group))
LOCKED_WITHOUT_RESULT(setpwent)
LOCKED_WITHOUT_RESULT(endpwent)
LOCKED_WITHOUT_RESULT(setgrent)
LOCKED_WITHOUT_RESULT(endgrent)
