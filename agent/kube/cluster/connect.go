package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// requestTimeout bounds a request other than a watch. A paused API server accepts
// connections and never answers.
const requestTimeout = 30 * time.Second

// scheme has the types that are read, and no others.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{}, &corev1.Node{})
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	return s
}

var (
	scheme         = newScheme()
	codecs         = serializer.NewCodecFactory(scheme)
	parameterCodec = runtime.NewParameterCodec(scheme)
)

// SetConnectionTimeouts lets client-go find out within ten seconds that an API server does not
// answer on a connection any more, for example behind a load balancer that was replaced, and
// connect again. Its default is 45 seconds (k8s.io/apimachinery/pkg/util/net), in which every
// report would time out. client-go reads them from the environment alone, so this is called by
// main, before Watch.
func SetConnectionTimeouts() {
	for _, name := range []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"} {
		if os.Getenv(name) == "" {
			os.Setenv(name, "5")
		}
	}
}

// client is a connection to the API server.
type client struct {
	rest   *rest.RESTClient
	config *rest.Config
	// files has the names of the files, for errors.
	files files
}

// files has the sources of the configuration.
type files struct {
	kubeconfig string // empty in a pod
	server     string
	token      string // empty if it is in the kubeconfig
	ca         string
}

// connect reads the configuration. It makes no request.
func (o *Options) connect() (*client, error) {
	config, err := o.load()
	if err != nil {
		return nil, err
	}
	// The requests for the pods of one node are few; client-go's default limit of 5
	// requests a second would delay urgent ones.
	config.QPS = -1
	config.UserAgent = "evictd-kube/" + o.Software
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = codecs.WithoutConversion()
	// Protobuf has a smaller peak at the first list, but pages of its decoder stay resident.
	config.ContentType = runtime.ContentTypeJSON
	c := &client{config: config, files: files{
		kubeconfig: o.Kubeconfig, server: config.Host, token: config.BearerTokenFile, ca: config.CAFile,
	}}
	// client-go caches transports by the name of the CA file, and reads the file again after
	// five minutes; by its content a corrected file counts at once.
	if config.CAFile != "" && len(config.CAData) == 0 {
		config.CAData, err = os.ReadFile(config.CAFile)
	}
	if err == nil {
		c.rest, err = rest.RESTClientFor(config)
	}
	if err != nil {
		return nil, fmt.Errorf("load the credentials for API server %s: %w: correct the %s and the CA in %s", config.Host, err, c.files.credentials(), c.files.authority())
	}
	return c, nil
}

// load reads the kubeconfig, or a pod's own files without one.
func (o *Options) load() (*rest.Config, error) {
	if o.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("this is not a pod, and no kubeconfig is given: use --kubeconfig FILE")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: mount the service account's token into the container (automountServiceAccountToken)", err)
		}
		return config, nil
	}
	if _, err := os.ReadFile(o.Kubeconfig); err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w: name a file that user %d can read with --kubeconfig", err, os.Getuid())
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: o.Kubeconfig}, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w: correct it; kubectl --kubeconfig=%s get --raw /version tests it", o.Kubeconfig, err, o.Kubeconfig)
	}
	return config, nil
}

// errOtherMachine is returned for a Node that is another machine, or was this one before its last boot.
var errOtherMachine = errors.New("another machine")

// checkNode returns an error if the node does not exist, can't be read, or is not the machine with that
// boot ID ([errOtherMachine]), if both are known. The kubelet writes the Node's when it starts. The API server may answer
// from its cache: all nodes ask when they start.
func (c *client) checkNode(ctx context.Context, name, bootID string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var node corev1.Node
	err := c.rest.Get().Resource("nodes").Name(name).Param("resourceVersion", "0").Do(ctx).Into(&node)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("API server %s knows no node %q: evictd-kube waits for its kubelet to register it; if kubectl get nodes shows another name, set --node-name to that", c.files.server, name)
	}
	if err != nil {
		return c.files.explain(err)
	}
	if of := node.Status.NodeInfo.BootID; of != "" && bootID != "" && !sameBoot(of, bootID) {
		return fmt.Errorf("node %q of API server %s is %w: its boot ID is %.60q, not %s: correct %s, --node-name or BOOT_ID; after a boot, the kubelet corrects the node",
			name, c.files.server, errOtherMachine, of, bootID, c.files.configuration())
	}
	return nil
}

// sameBoot reports whether two boot IDs are the same. systemd writes them without dashes.
func sameBoot(a, b string) bool {
	plain := func(id string) string { return strings.ToLower(strings.ReplaceAll(strings.TrimSpace(id), "-", "")) }
	return plain(a) == plain(b)
}
