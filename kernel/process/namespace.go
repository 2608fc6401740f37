package process

// The links in /proc/PID/ns of processes in the first namespaces, to which the
// kernel gives these inode numbers (include/linux/proc_ns.h: PROC_PID_INIT_INO,
// PROC_USER_INIT_INO).
const (
	FirstPIDNamespace  = "pid:[4026531836]"
	FirstUserNamespace = "user:[4026531837]"
)
