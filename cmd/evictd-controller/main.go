// Command evictd-controller fences dead nodes of a Kubernetes cluster: it switches their machines off, proves that they
// are off, and only then releases their pods and volumes. It also evicts pods that no longer fit their node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"

	"github.com/evictd/evictd/agent/controller"
	"github.com/evictd/evictd/agent/controller/affinity"
	"github.com/evictd/evictd/agent/logflags"
	"github.com/evictd/evictd/agent/version"
)

const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "execute" {
		return runExecute(args[1:], stderr)
	}
	o := controller.Options{NodeName: os.Getenv("NODE_NAME"), Election: controller.DefaultElection()}
	flags := flag.NewFlagSet("evictd-controller", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { usage(flags) }
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "read the API server's address and the credentials from the kubeconfig `FILE`; without it, evictd-controller uses the service account of its pod")
	flags.StringVar(&o.Namespace, "namespace", environment("POD_NAMESPACE", "evictd"), "read ConfigMaps and Secrets of namespace `NS` only; the default is the environment variable POD_NAMESPACE, or evictd")
	flags.StringVar(&o.MetricsAddress, "metrics-address", ":9189", "serve the metrics at `ADDR`; 0 serves none")
	flags.StringVar(&o.ProbeAddress, "probe-address", "0", "serve /healthz and /readyz at `ADDR`; 0 serves none")
	flags.StringVar(&o.KdumpAddress, "kdump-address", "0", "receive the datagrams of fence_kdump_send at `ADDR`, such as :7410, and switch a node off that sends them only after its dump; 0 receives none")
	flags.StringVar(&o.WebhookAddress, "webhook-address", "0", "serve the API server and schedulers by HTTPS at `ADDR`, such as :9443, in every replica; 0 serves none")
	flags.StringVar(&o.WebhookCertDir, "webhook-cert-dir", "", "serve them with the certificate tls.crt and the key tls.key in `DIR`; without it, evictd-controller makes them and keeps them in the Secret evictd-controller-webhook")
	flags.StringVar(&o.ExtenderClientCA, "extender-client-ca", "", "answer only schedulers whose client certificate an authority in `FILE` has signed; without it, schedulers need no certificate")
	flags.BoolVar(&o.LeaderElect, "leader-elect", true, "act only as the leader of all controllers of the namespace; false is safe only if no other can run")
	flags.DurationVar(&o.Election.LeaseDuration, "leader-elect-lease-duration", o.Election.LeaseDuration, "become the leader `TIME` after a leader renewed its lease for the last time, in whole seconds; the same in every replica")
	flags.DurationVar(&o.Election.RenewDeadline, "leader-elect-renew-deadline", o.Election.RenewDeadline, "end `TIME` after the last renewal of the lease, and kill all fence agents: more than 1s less than the lease duration")
	flags.DurationVar(&o.Election.RetryPeriod, "leader-elect-retry-period", o.Election.RetryPeriod, "try to acquire or renew the lease each `TIME`")
	flags.StringVar(&o.Identity, "identity", environment("POD_NAME", hostname()), "call this controller `NAME` in NodeFences; the default is the environment variable POD_NAME, or the host's name")
	flags.StringVar(&o.AgentsDirectory, "fence-agents-dir", "/usr/sbin", "run the fence agents of ClusterLabs in `DIR`, such as DIR/fence_apc")
	flags.StringVar(&o.ExecutorImage, "executor-image", "", "run fence agents whose executor is job in Jobs with `IMAGE`, which has this program and the agents; without it there are no Jobs")
	mode := flags.String("affinity", string(affinity.Observe), "what to do about pods that violate their annotation "+affinity.Annotation+": `MODE` observe reports them, enforce evicts them, off does not watch pods")
	logging := logflags.Register(flags)
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	if *showVersion {
		fmt.Fprintln(stdout, "evictd-controller", version.Of())
		return exitOK
	}
	problem := mistake(&o)
	var err error
	switch o.Affinity, err = affinity.ParseMode(*mode); {
	case flags.NArg() > 0:
		problem = fmt.Sprintf("unexpected argument %q; see evictd-controller --help", flags.Arg(0))
	case logging.Check() != nil:
		problem = logging.Check().Error()
	case err != nil:
		problem = "--affinity " + err.Error()
	}
	if problem != "" {
		fmt.Fprintln(stderr, "evictd-controller:", problem)
		return exitUsage
	}
	o.Log = logging.Logger(stderr)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := controller.Run(ctx, &o); err != nil {
		o.Log.Error("stopped", "error", err)
		return exitFailed
	}
	o.Log.Info("stopped")
	return exitOK
}

// mistake returns what is wrong with the options, empty if nothing is.
func mistake(o *controller.Options) string {
	for _, a := range []struct{ flag, address string }{
		{"metrics", o.MetricsAddress}, {"probe", o.ProbeAddress}, {"kdump", o.KdumpAddress}, {"webhook", o.WebhookAddress},
	} {
		if !listenable(a.address) {
			return fmt.Sprintf("--%s-address is HOST:PORT, :PORT or 0, not %q", a.flag, a.address)
		}
	}
	switch {
	case o.Namespace == "":
		return "no namespace: set --namespace or POD_NAMESPACE to the one of the ConfigMaps"
	case o.WebhookCertDir != "" && !filepath.IsAbs(o.WebhookCertDir):
		return fmt.Sprintf("--webhook-cert-dir is an absolute path, not %q", o.WebhookCertDir)
	case o.ExtenderClientCA != "" && !filepath.IsAbs(o.ExtenderClientCA):
		return fmt.Sprintf("--extender-client-ca is an absolute path, not %q", o.ExtenderClientCA)
	case o.ExtenderClientCA != "" && o.WebhookAddress == "0":
		return "--extender-client-ca needs --webhook-address: without it no scheduler is answered"
	case !filepath.IsAbs(o.AgentsDirectory):
		return fmt.Sprintf("--fence-agents-dir is an absolute path, not %q", o.AgentsDirectory)
	case o.ExecutorImage != "" && !pinned(o.ExecutorImage):
		return fmt.Sprintf("--executor-image is NAME:TAG or NAME@sha256:DIGEST, with another tag than latest, not %q", o.ExecutorImage)
	case o.Identity == "":
		return "no identity: set --identity or POD_NAME to a name that no other controller has"
	case o.LeaderElect && o.Election.Check() != nil:
		return o.Election.Check().Error()
	}
	return ""
}

// environment returns the value of an environment variable, another one if it is not set.
func environment(name, other string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return other
}

// hostname returns the host's name, empty if it has none.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// listenable reports whether a server can have an address: 0 for none, or one with a port.
func listenable(address string) bool {
	if address == "0" {
		return true
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

var (
	digest = regexp.MustCompile(`^[^@\s]+@sha256:[0-9a-f]{64}$`)
	tag    = regexp.MustCompile(`^[^@\s]+:([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})$`)
)

// pinned reports whether an image has a digest or a tag, so that all Jobs run one version of it.
func pinned(image string) bool {
	if digest.MatchString(image) {
		return true
	}
	m := tag.FindStringSubmatch(image)
	return m != nil && m[1] != "latest"
}

func usage(flags *flag.FlagSet) {
	fmt.Fprint(flags.Output(), `evictd-controller fences dead nodes: it switches the machine of a node off whose Lease has
stopped, reads from its power device that it is off, and only then releases its pods and
volumes. It is configured by ConfigMaps and Secrets of its namespace, and is in dry run
until cluster-fence-config says otherwise.

It also watches for pods that violate the node affinity in their annotation
evictd.io/required-during-execution, and evicts them with --affinity=enforce.

  evictd-controller                                   in a pod
  evictd-controller --kubeconfig FILE --namespace NS  outside of the cluster

  evictd-controller execute --request FILE            in the pod of a Job of it

It never fences the node in the environment variable NODE_NAME, on which it runs itself.

`)
	flags.PrintDefaults()
}
