// Command evictd-kube runs next to evictd on a Kubernetes node, without privileges. It
// watches the node's pods in the API server and sends evictd facts about them: priority,
// requests, limits, owner. It reports the evictions of evictd to the API server, and maintains
// evictd's conditions and taints of the Node.
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
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/kube/cluster"
	"github.com/evictd/evictd/agent/logflags"
	"github.com/evictd/evictd/agent/version"
)

const (
	exitOK    = 0
	exitUsage = 2
)

// The values of --affinity-admission.
const admissionOff, admissionReject = "off", "reject"

// stopTimeout bounds how long evictd-kube goes on after a signal while evictd has orders or
// conditions. evictd waits for its last reports for five seconds.
const stopTimeout = 6 * time.Second

// trimDelay is when evictd-kube has connected, and has decoded the first list.
const trimDelay = 10 * time.Second

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("evictd-kube", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { usage(flags) }
	kubeconfig := flags.String("kubeconfig", "", "read the API server's address and the credentials from the kubeconfig `FILE`; without it, evictd-kube uses the service account of its pod")
	node := flags.String("node-name", os.Getenv("NODE_NAME"), "watch the pods of the Node object `NAME`; the default is the environment variable NODE_NAME")
	boot := flags.String("boot-id", os.Getenv("BOOT_ID"), "the `ID` of this boot: a Node with another one is another machine, and is not used. The default is the environment variable BOOT_ID, or what the kernel says in "+bootIDFile)
	socket := flags.String("socket", "/run/evictd/kube.sock", "connect to evictd at the unix socket `PATH`")
	admission := flags.String("affinity-admission", admissionOff, "with reject, mark new pods Failed whose annotation evictd.io/required-during-execution does not match the node, before a container of them is reported: `off or reject`")
	var peering peering
	peering.register(flags)
	logging := logflags.Register(flags)
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	problem := ""
	switch {
	case *showVersion:
		fmt.Fprintln(stdout, "evictd-kube", version.Of())
		return exitOK
	case flags.NArg() > 0:
		problem = fmt.Sprintf("unexpected argument %q; see evictd-kube --help", flags.Arg(0))
	case logging.Check() != nil:
		problem = logging.Check().Error()
	case *node == "":
		problem = "no node name: set --node-name or NODE_NAME to the name that kubectl get nodes shows"
	case *admission != admissionOff && *admission != admissionReject:
		problem = fmt.Sprintf("--affinity-admission is %q; want %s or %s", *admission, admissionOff, admissionReject)
	case peering.check() != "":
		problem = peering.check()
	case len(*node) > 253:
		problem = "--node-name is longer than 253 characters"
	}
	if problem != "" {
		fmt.Fprintln(stderr, "evictd-kube:", problem)
		return exitUsage
	}
	log := logging.Logger(stderr)
	// client-go's own lines would repeat each failure that cluster.Watch reports.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	cluster.SetConnectionTimeouts()
	signaled, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	// Returns to the kernel what only the start and the first list needed.
	defer time.AfterFunc(trimDelay, debug.FreeOSMemory).Stop()
	if *boot == "" {
		var err error
		if *boot, err = readBootID(bootIDFile); err != nil {
			log.Warn("the Node is used also if it is another machine: the ID of this boot is not known", "error", err)
		}
	}
	release := version.Of()
	log.Info("starting", "version", release.String(), "node", *node, "socket", *socket)
	feed := kube.NewFeed(*node, release.String(), log)
	reporter := cluster.NewReporter(*node, feed, log)
	feed.Orders, feed.Node = reporter, reporter
	configz := cluster.NewConfigz(*node, feed, log)
	feed.KubeletReader = configz
	marks := cluster.NewMarks(*node, feed, log)
	feed.Marks = marks
	var parts sync.WaitGroup
	peerNodes := peering.start(ctx, &parts, *node, feed, marks, log)
	var rejector *cluster.Rejector
	if *admission == admissionReject {
		rejector = cluster.NewRejector(reporter, feed, log)
		parts.Go(func() { rejector.Run(ctx) })
	}
	parts.Go(func() { feed.Run(ctx, *socket) })
	parts.Go(func() { reporter.Run(ctx) })
	parts.Go(func() { configz.Run(ctx) })
	parts.Go(func() { marks.Run(ctx) })
	parts.Go(func() {
		cluster.Watch(ctx, cluster.Options{Kubeconfig: *kubeconfig, Node: *node, BootID: *boot, Software: release.Version, Feed: feed, Reporter: reporter, Configz: configz, Rejector: rejector, Marks: marks, PeerNodes: peerNodes, Log: log})
	})
	parts.Go(func() {
		<-signaled.Done()
		drain, stop := context.WithTimeout(ctx, stopTimeout)
		defer stop()
		reporter.Drain(drain)
		marks.Drain(drain)
		cancel()
	})
	parts.Wait()
	log.Info("stopped")
	return exitOK
}

func usage(flags *flag.FlagSet) {
	fmt.Fprint(flags.Output(), `evictd-kube sends evictd the priorities, requests, limits and owners of this node's pods,
reports evictd's evictions to the API server, and maintains evictd's conditions and
taints of the Node.

  evictd-kube                                     in a pod, with NODE_NAME set
  evictd-kube --kubeconfig FILE --node-name NAME  as a unit

Set kube.uid in evictd's configuration to the user ID of evictd-kube. SIGTERM ends
evictd-kube: at once if evictd is in dry run and the Node says so, else when evictd has
stopped, after 6 seconds at most.

`)
	flags.PrintDefaults()
}
