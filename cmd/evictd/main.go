// Command evictd is a node agent that evicts pods under resource pressure. It
// monitors the kubelet's eviction signals.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"github.com/evictd/evictd/agent"
	"github.com/evictd/evictd/agent/version"
)

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	// exitConfig means that the configuration is invalid (EX_CONFIG of sysexits.h).
	// The unit does not restart evictd after it, because evictd would fail again.
	exitConfig = 78
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	o := agent.Defaults()
	flags := flag.NewFlagSet("evictd", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { usage(flags) }
	flags.StringVar(&o.ConfigPath, "config", o.ConfigPath, "read the AgentConfiguration from `FILE`; without the default file evictd uses the kubelet's defaults, in dry run")
	flags.StringVar(&o.ControlSocket, "control-socket", o.ControlSocket, "create the control socket for evictctl at `PATH`, with mode 0600")
	flags.BoolVar(&o.DryRun, "dry-run", false, "decide and report, but evict no pod, whatever the configuration says")
	flags.StringVar(&o.FenceFile, "fence-file", o.FenceFile, "mark the fences of evicted pods in `FILE`, which must survive a restart of evictd and not a reboot")
	flags.StringVar(&o.KubeSocket, "kube-socket", o.KubeSocket, "create the socket for evictd-kube at `PATH`, with mode 0660, if kube.uid is set in the configuration")
	flags.StringVar(&o.KubeletConfigPath, "kubelet-config", "", "read eviction and shutdown settings from the KubeletConfiguration `FILE`; --config overrides it field by field")
	flags.TextVar(&o.LogLevel, "log.level", slog.LevelInfo, "log messages with at least `LEVEL`: debug, info, warn or error")
	flags.StringVar(&o.LogFormat, "log.format", o.LogFormat, "log in `FORMAT`: text or json")
	flags.StringVar(&o.Cgroupfs, "path.cgroupfs", o.Cgroupfs, "`DIR` where the host's cgroups are mounted")
	flags.StringVar(&o.Procfs, "path.procfs", o.Procfs, "`DIR` where the host's proc filesystem is mounted")
	flags.StringVar(&o.Rootfs, "path.rootfs", o.Rootfs, "`DIR` where the host's root is mounted, or the kubelet's and the runtime's directories of it; the runtime's socket, the node's filesystem and the files of pods are below it")
	flags.StringVar(&o.Sysfs, "path.sysfs", o.Sysfs, "`DIR` where the host's sys filesystem is mounted")
	release := flags.Bool("release-fences", false, "lift the fences that an evictd left that no longer runs, so that kubelets can start these pods again, and exit")
	flags.StringVar(&o.StateDir, "state-dir", o.StateDir, "keep the state that survives a restart in `DIR`")
	showVersion := flags.Bool("version", false, "print the version and exit")
	flags.StringVar(&o.WebConfigFile, "web.config.file", "", "`FILE` with TLS and authentication of the web server, in the format of Prometheus exporters")
	flags.StringVar(&o.WebAddress, "web.listen-address", o.WebAddress, "serve metrics and health checks on `ADDRESS`; empty to disable")

	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "evictd: unexpected argument %q; see evictd --help\n", flags.Arg(0))
		return exitUsage
	}
	if *showVersion {
		fmt.Fprintln(stdout, "evictd", version.Of())
		return exitOK
	}
	if !slices.Contains([]string{"text", "json"}, o.LogFormat) {
		fmt.Fprintf(stderr, "evictd: --log.format is text or json, not %q\n", o.LogFormat)
		return exitUsage
	}
	flags.Visit(func(f *flag.Flag) {
		if f.Name == "config" {
			o.ConfigGiven = true
		}
	})
	o.Stderr = stderr
	if *release {
		return exitCode(stderr, agent.ReleaseFences(o, stdout))
	}

	// A thread that returns from a system call must find a free P, so that it does not
	// wait for other goroutines.
	runtime.GOMAXPROCS(max(8, runtime.GOMAXPROCS(0)))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	o.Reload = hangup
	return exitCode(stderr, agent.Run(ctx, o))
}

// exitCode writes an error and returns the exit code for it.
func exitCode(stderr io.Writer, err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, agent.ErrConfig):
		agent.WriteError(stderr, err)
		return exitConfig
	}
	agent.WriteError(stderr, err)
	return exitFailure
}

func usage(flags *flag.FlagSet) {
	out := flags.Output()
	fmt.Fprint(out, `evictd evicts pods when a node runs out of memory, disk space or PIDs.

  evictd --dry-run                       report what would be evicted on this host
  evictd --config /etc/evictd/config.yaml
  evictd --kubelet-config /var/lib/kubelet/config.yaml

SIGHUP reloads the configuration; SIGTERM stops evictd.

`)
	flags.PrintDefaults()
}
