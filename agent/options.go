package agent

import (
	"io"
	"log/slog"
	"os"
)

// Options are the values of the command line.
type Options struct {
	// ConfigPath is the AgentConfiguration. With ConfigGiven it was given by a flag, so
	// that it must exist.
	ConfigPath        string
	ConfigGiven       bool
	KubeletConfigPath string
	DryRun            bool

	StateDir      string
	ControlSocket string
	KubeSocket    string
	FenceFile     string
	WebAddress    string
	WebConfigFile string

	// Where the host's filesystems are mounted.
	Cgroupfs string
	Procfs   string
	Rootfs   string
	Sysfs    string

	LogLevel  slog.Level
	LogFormat string // text or json
	Stderr    io.Writer

	// Reload requests that the configuration be read again.
	Reload <-chan os.Signal
}

// Defaults returns the options of a daemon that is started without flags.
func Defaults() Options {
	return Options{
		ConfigPath:    "/etc/evictd/config.yaml",
		StateDir:      "/var/lib/evictd",
		ControlSocket: "/run/evictd/evictd.sock",
		KubeSocket:    "/run/evictd/kube.sock",
		FenceFile:     "/run/evictd/fences",
		WebAddress:    "127.0.0.1:9908",
		Cgroupfs:      "/sys/fs/cgroup",
		Procfs:        "/proc",
		Rootfs:        "/",
		Sysfs:         "/sys",
		LogFormat:     "text",
		Stderr:        os.Stderr,
	}
}
