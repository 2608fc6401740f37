package serving

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// logText is a log that is read while it is written.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// replica is a Keeper that runs.
type replica struct {
	*Keeper
	wake    chan struct{}
	elected chan struct{}
	log     *logText
}

// apiServer is what replicas read and write, with a count of the requests.
type apiServer struct {
	client.Client
	mu       sync.Mutex
	requests map[string]int
}

func newAPIServer(objects ...client.Object) *apiServer {
	a := &apiServer{requests: make(map[string]int)}
	a.Client = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			a.count("get")
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			a.count("create")
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			a.count("update")
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			a.count("patch")
			return c.Patch(ctx, o, p, opts...)
		},
	}).Build()
	return a
}

func (a *apiServer) count(verb string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests[verb]++
}

// counted returns the requests since the last call.
func (a *apiServer) counted() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	counted := a.requests
	a.requests = make(map[string]int)
	return counted
}

func (a *apiServer) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	s := &corev1.Secret{}
	if err := a.Get(t.Context(), types.NamespacedName{Namespace: "evictd", Name: SecretName}, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// webhooks returns the bundles of the webhooks by name.
func (a *apiServer) webhooks(t *testing.T) map[string]string {
	t.Helper()
	o := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := a.Get(t.Context(), types.NamespacedName{Name: ConfigurationName}, o); err != nil {
		t.Fatal(err)
	}
	bundles := map[string]string{}
	for i := range o.Webhooks {
		bundles[o.Webhooks[i].Name] = string(o.Webhooks[i].ClientConfig.CABundle)
	}
	return bundles
}

func webhookConfiguration() *admissionregistrationv1.MutatingWebhookConfiguration {
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ConfigurationName},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			{Name: "other.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: []byte("other")}}, {Name: WebhookName},
		},
	}
}

// start starts a replica, which ends with the test.
func (a *apiServer) start(t *testing.T) *replica {
	t.Helper()
	r := &replica{wake: make(chan struct{}, 1), elected: make(chan struct{}), log: &logText{}}
	c := &Certificate{}
	r.Keeper = &Keeper{
		Namespace: "evictd", Certificate: c, Reader: a, Writer: a, Wake: r.wake, Elected: r.elected,
		Metrics: NewMetrics(c), Log: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// serves returns what a replica serves.
func (r *replica) serves(t *testing.T) []byte {
	t.Helper()
	c, err := r.Certificate.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", c.Leaf.Raw)
}

// inSync checks that replicas serve what the Secret has, and that the webhook has its authorities.
func (a *apiServer) inSync(t *testing.T, replicas ...*replica) {
	t.Helper()
	synctest.Wait()
	s := a.secret(t)
	for i, r := range replicas {
		if got := r.serves(t); !bytes.Equal(got, s.Data[keyServing]) {
			t.Errorf("replica %d serves another certificate than that of the Secret", i)
		}
	}
	if diff := cmp.Diff(map[string]string{"other.example.com": "other", WebhookName: string(s.Data[keyAuthority])}, a.webhooks(t)); diff != "" {
		t.Errorf("bundles (-want +got):\n%s", diff)
	}
}

func elect(r *replica) {
	close(r.elected)
	synctest.Wait()
}

func wake(replicas ...*replica) {
	for _, r := range replicas {
		r.wake <- struct{}{}
		synctest.Wait()
	}
}

// TestKeeper: the first replica makes the Secret, before there is a leader. The leader writes the bundle, renews the
// certificate two months later, and sends no request in between.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServer(webhookConfiguration())
		one, two := a.start(t), a.start(t)
		synctest.Wait()
		first := a.secret(t)
		if !bytes.Equal(one.serves(t), two.serves(t)) || first.Labels[labelManagedBy] != managedBy {
			t.Errorf("two certificates, or labels %v", first.Labels)
		}
		if got := a.webhooks(t)[WebhookName]; got != "" {
			t.Error("the bundle was written without a leader")
		}
		elect(two)
		a.inSync(t, one, two)

		a.counted()
		time.Sleep(60*day - time.Minute)
		synctest.Wait()
		if got := a.counted(); len(got) > 0 {
			t.Errorf("requests before the renewal: %v; want none", got)
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if got := a.counted(); got["update"] != 1 || got["patch"] != 0 {
			t.Errorf("requests for the renewal: %v; want one update, and no patch for the same authority", got)
		}
		wake(one, two)
		a.inSync(t, one, two)
		if s := a.secret(t); bytes.Equal(s.Data[keyServing], first.Data[keyServing]) || !bytes.Equal(s.Data[keyAuthority], first.Data[keyAuthority]) {
			t.Error("after the renewal: want a new serving certificate of the same authority")
		}
	})
}

// TestKeeperDeleted: a Secret that was deleted is made again, with a new authority.
func TestKeeperDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServer(webhookConfiguration())
		one, two := a.start(t), a.start(t)
		synctest.Wait()
		elect(one)
		first := a.secret(t)
		if err := a.Delete(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		wake(two, one)
		a.inSync(t, one, two)
		if bytes.Equal(a.secret(t).Data[keyAuthority], first.Data[keyAuthority]) {
			t.Error("the authority is the old one")
		}
	})
}

// TestKeeperForeign: a Secret that another program made stays as it is, and ends no certificate that is in use.
func TestKeeperForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: SecretName}, Data: map[string][]byte{keyServing: []byte("foreign")},
		}
		a := newAPIServer(webhookConfiguration(), foreign)
		one, two := a.start(t), a.start(t)
		synctest.Wait()
		elect(one)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := a.counted(); got["create"]+got["update"]+got["patch"] > 0 || got["get"] > 60 {
			t.Errorf("requests: %v; want reads only, at most once in 5 min", got)
		}
		if _, err := one.Certificate.Get(nil); err == nil {
			t.Error("there is a certificate")
		}
		if got := a.secret(t); string(got.Data[keyServing]) != "foreign" {
			t.Errorf("the Secret has %q", got.Data)
		}
		if text := one.log.String(); strings.Count(text, "was not made by evictd-controller") != 1 {
			t.Errorf("log:\n%s\nwant the reason once", text)
		}
		if err := a.Delete(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
		wake(one, two)
		a.inSync(t, one, two)

		served := one.serves(t)
		s := a.secret(t)
		s.Labels = nil
		if err := a.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * day)
		synctest.Wait()
		if !bytes.Equal(one.serves(t), served) || !bytes.Equal(a.secret(t).Data[keyServing], served) {
			t.Error("the certificate was replaced")
		}
	})
}

// TestKeeperDamaged: the leader makes a damaged Secret again, and signs a missing serving certificate with the same
// authority. Another replica waits for that.
func TestKeeperDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServer(webhookConfiguration())
		one, two := a.start(t), a.start(t)
		synctest.Wait()
		elect(one)
		damage := func(key string) (before *corev1.Secret) {
			before = a.secret(t)
			s := before.DeepCopy()
			s.Data[key] = []byte("damaged")
			if err := a.Update(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			wake(two)
			if got := a.secret(t); string(got.Data[key]) != "damaged" {
				t.Errorf("%s was repaired by a replica that is not the leader", key)
			}
			if !bytes.Equal(two.serves(t), before.Data[keyServing]) {
				t.Errorf("%s ended the certificate in use", key)
			}
			wake(one, two)
			a.inSync(t, one, two)
			return before
		}
		before := damage(keyServing)
		if got := a.secret(t); !bytes.Equal(got.Data[keyAuthority], before.Data[keyAuthority]) {
			t.Error("a new authority for a damaged serving certificate")
		}
		before = damage(keyAuthorityKey)
		if got := a.secret(t); bytes.Equal(got.Data[keyAuthority], before.Data[keyAuthority]) {
			t.Error("the same authority without its key")
		}
	})
}

// TestKeeperBothLead: two leaders, as for a moment at a handover, do not overwrite each other.
func TestKeeperBothLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServer(webhookConfiguration())
		one, two := a.start(t), a.start(t)
		synctest.Wait()
		elect(one)
		elect(two)
		a.counted()
		time.Sleep(61 * day)
		synctest.Wait()
		if got := a.counted(); got["update"] > 2 {
			t.Errorf("requests: %v; want at most one update of each", got)
		}
		wake(one, two)
		a.inSync(t, one, two)
	})
}

// TestKeeperBundleChanged: another program that sets the bundle, too, is reported, and not raced.
func TestKeeperBundleChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServer(webhookConfiguration())
		one := a.start(t)
		synctest.Wait()
		elect(one)
		a.inSync(t, one)
		a.counted()
		for range 60 {
			o := &admissionregistrationv1.MutatingWebhookConfiguration{}
			if err := a.Get(t.Context(), types.NamespacedName{Name: ConfigurationName}, o); err != nil {
				t.Fatal(err)
			}
			o.Webhooks[1].ClientConfig.CABundle = []byte("another")
			if err := a.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			wake(one)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if got := a.counted(); got["patch"] > 2 {
			t.Errorf("%d patches in a minute; want at most 2", got["patch"])
		}
		if !strings.Contains(one.log.String(), "does another program, such as cert-manager's cainjector, set it, too?") {
			t.Errorf("log:\n%s", one.log)
		}
		time.Sleep(time.Hour)
		a.inSync(t, one)
	})
}
