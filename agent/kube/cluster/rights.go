package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// oldestMinor is the oldest minor version of Kubernetes 1 that evictd-kube reports to.
const oldestMinor = 33

// right is what evictd-kube needs to report evictions.
type right struct{ verb, subresource string }

func (r right) String() string {
	if r.subresource != "" {
		return r.verb + " pods/" + r.subresource
	}
	return r.verb + " pods"
}

var rights = []right{{"get", ""}, {"patch", "status"}, {"delete", ""}}

// review is a SelfSubjectAccessReview of authorization.k8s.io/v1.
type review struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		ResourceAttributes resourceAttributes `json:"resourceAttributes"`
	} `json:"spec"`
	Status struct {
		Allowed bool `json:"allowed"`
	} `json:"status"`
}

type resourceAttributes struct {
	Verb        string `json:"verb"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
}

// cannotReport returns why evictions can't be reported to this API server, in one line with the
// remedy; "" if they can. An error means that this is not known.
func (c *client) cannotReport(ctx context.Context) (string, error) {
	why, err := c.missing(ctx)
	if err != nil && outcomeOf(err) != later {
		return oneLine(fmt.Sprintf("API server %s does not say whether evictd-kube may report evictions: %s: bind the ClusterRole system:basic-user to its user", c.files.server, err)), nil
	}
	return why, err
}

func (c *client) missing(ctx context.Context) (string, error) {
	why, err := c.tooOld(ctx)
	if why != "" || err != nil {
		return why, err
	}
	var missing []string
	for _, r := range rights {
		allowed, err := c.may(ctx, r)
		if err != nil {
			return "", err
		}
		if !allowed {
			missing = append(missing, r.String())
		}
	}
	if len(missing) == 0 {
		return "", nil
	}
	return "the user of evictd-kube may not " + strings.Join(missing, ", ") + ": bind the ClusterRole of deploy/kubernetes to it", nil
}

func (c *client) tooOld(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	body, err := c.rest.Get().MaxRetries(0).AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var v struct{ Major, Minor string }
	if err := json.Unmarshal(body, &v); err != nil {
		return "", fmt.Errorf("version of the API server: %w", err)
	}
	minor, err := strconv.Atoi(strings.TrimRight(v.Minor, "+")) // some vendors append it
	if err == nil && v.Major == "1" && minor >= oldestMinor {
		return "", nil
	}
	return oneLine(fmt.Sprintf("the API server is Kubernetes %.20q.%.20q: evictd-kube reports to 1.%d and later", v.Major, v.Minor, oldestMinor)), nil
}

func (c *client) may(ctx context.Context, r right) (bool, error) {
	question := review{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
	question.Spec.ResourceAttributes = resourceAttributes{Verb: r.verb, Resource: "pods", Subresource: r.subresource}
	body, err := c.create(ctx, &question, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
	if err != nil {
		return false, err
	}
	var answer review
	if err := json.Unmarshal(body, &answer); err != nil {
		return false, fmt.Errorf("answer to a SelfSubjectAccessReview: %w", err)
	}
	return answer.Status.Allowed, nil
}

// check checks the rights again.
func (r *Reporter) check(ctx context.Context, c *connection) {
	err := r.checkRights(ctx, c.client)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight--
	r.checking = false
	switch {
	case r.connection != c:
		r.checkAfter = time.Now()
	case err == nil:
		r.checkDelay = 0
	case ctx.Err() == nil:
		reason := c.files.explain(err)
		// Watch reports what only other credentials can end.
		if e := (*explained)(nil); r.checkDelay == 0 && !(errors.As(reason, &e) && e.reload) {
			r.log.Warn("could not find out whether evictions can be reported; trying again", "error", reason)
		}
		r.checkDelay = min(max(firstCheckDelay, 2*r.checkDelay), r.ForbiddenDelay)
		r.checkAfter = time.Now().Add(r.checkDelay/2 + rand.N(r.checkDelay/2))
	}
	r.notify()
}

// checkRights finds out whether evictions can be reported, and tells evictd. If that fails,
// evictd keeps the last answer. A right that was there is missing only if it still is
// after ForbiddenDelay.
func (r *Reporter) checkRights(ctx context.Context, c *client) error {
	missing, err := c.cannotReport(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.checked:
	default:
		defer close(r.checked)
	}
	now := time.Now()
	interval := checkInterval
	switch {
	case missing == "":
		r.missingSince = time.Time{}
	case r.missingSince.IsZero():
		r.missingSince = now
		fallthrough
	default: // doubles the time without it
		interval = min(max(r.ForbiddenDelay, now.Sub(r.missingSince)), checkInterval)
	}
	r.checkAfter = now.Add(interval + rand.N(interval/10))
	if missing != "" && r.mayReport && now.Sub(r.missingSince) < r.ForbiddenDelay {
		return nil
	}
	if missing != "" && missing != r.missing {
		level := slog.LevelInfo // as in the manifests of a dry run
		if r.mayReport {
			level = slog.LevelWarn
		}
		r.log.Log(ctx, level, "evictions can't be reported; evictd does not evict the kubelet's pods", "reason", missing)
	}
	r.missing, r.mayReport = missing, missing == ""
	r.answers.CannotReport(missing)
	return nil
}
