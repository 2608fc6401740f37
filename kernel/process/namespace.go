package process

// The link targets in /proc/PID/ns of processes in the initial namespaces, whose
// inode numbers are fixed (include/linux/proc_ns.h: PROC_PID_INIT_INO,
// PROC_USER_INIT_INO).
const (
	InitPIDNamespace  = "pid:[4026531836]"
	InitUserNamespace = "user:[4026531837]"
)
