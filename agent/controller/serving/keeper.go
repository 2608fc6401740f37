package serving

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// SecretName is the name of the Secret with the certificate, and that of the Service that it is for.
	SecretName = "evictd-controller-webhook"

	// clockInterval is how often the clock is compared with the renewal: it may be set.
	clockInterval = time.Hour
	// minInterval is the time between two renewals, whatever the clock says.
	minInterval = time.Minute
	// The back-off after a problem.
	firstBackoff, longestBackoff = time.Second, 5 * time.Minute
	// requestTimeout bounds each request to the API server.
	requestTimeout = 10 * time.Second
	// attempts bounds the repetitions of a pass during which another replica wrote.
	attempts = 3

	// A Secret with this label was made by a Keeper.
	labelManagedBy, managedBy = "app.kubernetes.io/managed-by", "evictd-controller"
)

// Keeper keeps the certificate in a Secret that all replicas share. It sends requests only at its start, after Wake, at
// the election, when the certificate must be renewed, and after a problem.
type Keeper struct {
	Namespace   string
	Certificate *Certificate
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
	Writer client.Writer
	// Wake reports that the Secret, or the configuration of the webhook, may have changed.
	Wake <-chan struct{}
	// Elected is closed when this replica is the leader.
	Elected <-chan struct{}
	Metrics *Metrics
	Log     *slog.Logger

	leader bool
	// known is what the Secret had when it was last read or written; nil if that could not be used.
	known   *material
	problem string
	// bundle is the last one that was written, and bundleAt when.
	bundle   []byte
	bundleAt time.Time
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Keeper) NeedLeaderElection() bool { return false }

// serverName is the name that the certificate is for: that of the Service within the cluster.
func (k *Keeper) serverName() string { return SecretName + "." + k.Namespace + ".svc" }

// Start implements manager.Runnable. It returns when ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	for backoff := firstBackoff; ctx.Err() == nil; {
		retry := time.Duration(0)
		if err := k.pass(ctx); err != nil {
			retry, backoff = backoff, min(2*backoff, longestBackoff)
			k.failed(err)
		} else {
			backoff = firstBackoff
			k.problem = ""
			k.Metrics.setProblem(false)
		}
		k.wait(ctx, retry)
	}
	return nil
}

// wait returns when a pass is due. After a problem retry is when it is repeated, else 0.
func (k *Keeper) wait(ctx context.Context, retry time.Duration) {
	for {
		interval := clockInterval
		switch {
		case retry > 0:
			interval = retry
		case k.leader && k.known != nil:
			interval = min(interval, max(time.Until(k.known.renewal()), minInterval))
		}
		select {
		case <-ctx.Done():
			return
		case <-k.Wake:
			return
		case <-k.Elected:
			k.leader, k.Elected = true, nil
			return
		case <-time.After(interval):
			if retry > 0 || k.leader && (k.known == nil || k.known.due(time.Now())) {
				return
			}
		}
	}
}

// failed reports a problem, once until it ends.
func (k *Keeper) failed(err error) {
	k.Metrics.setProblem(true)
	if err.Error() == k.problem {
		return
	}
	k.problem = err.Error()
	k.Log.Error("could not keep the serving certificate; the last one stays in use, and it is tried again", "error", err)
}

// pass reads the Secret, and as the leader renews it and writes the bundle.
func (k *Keeper) pass(ctx context.Context) error {
	var err error
	for range attempts {
		err = k.readOrWrite(ctx)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	if err != nil || !k.leader {
		return err
	}
	return k.writeBundle(ctx)
}

// readOrWrite takes over what the Secret has. The first replica creates it, the leader renews it.
func (k *Keeper) readOrWrite(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	secret := &corev1.Secret{}
	err := k.Reader.Get(ctx, types.NamespacedName{Namespace: k.Namespace, Name: SecretName}, secret)
	if apierrors.IsNotFound(err) {
		return k.create(ctx)
	}
	if err != nil {
		return fmt.Errorf("read Secret %s/%s: %w", k.Namespace, SecretName, err)
	}
	if secret.Labels[labelManagedBy] != managedBy {
		k.known = nil
		return fmt.Errorf("the Secret %s/%s was not made by evictd-controller, since it lacks the label %s=%s: delete it, or set --webhook-cert-dir",
			k.Namespace, SecretName, labelManagedBy, managedBy)
	}
	m, err := parseMaterial(secret.Data, k.serverName())
	if err != nil {
		k.known = nil
		if !k.leader {
			return fmt.Errorf("the Secret %s/%s: %w: the leader must make it again", k.Namespace, SecretName, err)
		}
		k.Log.Warn("the Secret of the serving certificate is damaged; it is made again", "secret", k.Namespace+"/"+SecretName, "error", err)
	}
	if k.leader {
		next, changed, err := m.renewed(time.Now(), k.serverName())
		if err != nil {
			return err
		}
		if changed {
			return k.update(ctx, secret, next)
		}
	}
	if m.serving == nil {
		return fmt.Errorf("the Secret %s/%s has no serving certificate for %s: the leader must sign one", k.Namespace, SecretName, k.serverName())
	}
	k.use(m)
	return nil
}

// create creates the Secret.
func (k *Keeper) create(ctx context.Context) error {
	m, _, err := (*material)(nil).renewed(time.Now(), k.serverName())
	if err != nil {
		return err
	}
	data, err := m.data()
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: SecretName, Labels: map[string]string{labelManagedBy: managedBy}},
		Data:       data,
	}
	if err := k.Writer.Create(ctx, secret); err != nil {
		return fmt.Errorf("create Secret %s/%s: %w", k.Namespace, SecretName, err)
	}
	k.Log.Info("serving certificate made", "secret", k.Namespace+"/"+SecretName)
	k.use(m)
	return nil
}

// update replaces the content of the Secret if it has not changed since it was read.
func (k *Keeper) update(ctx context.Context, secret *corev1.Secret, m *material) (err error) {
	if secret.Data, err = m.data(); err != nil {
		return err
	}
	if err := k.Writer.Update(ctx, secret); err != nil {
		return fmt.Errorf("update Secret %s/%s: %w", k.Namespace, SecretName, err)
	}
	k.Log.Info("serving certificate renewed", "secret", k.Namespace+"/"+SecretName, "authorities", len(m.authorities))
	k.use(m)
	return nil
}

// use serves with a certificate from now on.
func (k *Keeper) use(m *material) {
	k.known = m
	if k.Certificate.set(m.serving) {
		k.Log.Info("serving certificate in use", "name", k.serverName(), "not_after", m.serving.Leaf.NotAfter)
	}
}
