package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oldestMinor is the oldest minor version of Kubernetes 1 that evictd-kube reports to.
const oldestMinor = 33

// right is what evictd-kube may have to do.
type right struct{ verb, resource, subresource string }

func (r right) String() string {
	if r.subresource != "" {
		return r.verb + " " + r.resource + "/" + r.subresource
	}
	return r.verb + " " + r.resource
}

// rights are needed to report evictions, and nodeRights for what is written to the Node. Without the
// latter evictions go on.
var (
	rights     = []right{{"get", "pods", ""}, {"patch", "pods", "status"}, {"delete", "pods", ""}}
	nodeRights = map[nodeStep]right{writeTaints: {"patch", "nodes", ""}, writeConditions: {"patch", "nodes", "status"}}
)

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

// selfReview is a SelfSubjectReview of authentication.k8s.io/v1.
type selfReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Status     struct {
		UserInfo struct {
			Username string              `json:"username"`
			Extra    map[string][]string `json:"extra"`
		} `json:"userInfo"`
	} `json:"status"`
}

// nodeNameKey has the name of the node that the token of a service account is bound to, itself or by its pod
// (k8s.io/apiserver/pkg/authentication/serviceaccount: NodeNameKey). The policies of deploy/kubernetes go by it.
const nodeNameKey = "authentication.kubernetes.io/node-name"

// cannotReport returns why evictions of a node's pods can't be reported to this API server, in one line with the
// remedy; "" if they can. An error means that this is not known.
func (c *client) cannotReport(ctx context.Context, node string) (string, error) {
	why, err := c.missing(ctx)
	if why == "" && err == nil {
		why, err = c.unbound(ctx, node)
	}
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
	var missing []right
	for _, r := range rights {
		allowed, err := c.may(ctx, r)
		if err != nil {
			return "", err
		}
		if !allowed {
			missing = append(missing, r)
		}
	}
	return lacks(missing), nil
}

// missingForNode returns which requests about the Node the user may not make.
func (c *client) missingForNode(ctx context.Context) (map[nodeStep]right, error) {
	missing := map[nodeStep]right{}
	for step, r := range nodeRights {
		allowed, err := c.may(ctx, r)
		switch {
		case err != nil && outcomeOf(err) == later:
			return nil, err
		case err == nil && !allowed: // else the request itself will tell
			missing[step] = r
		}
	}
	return missing, nil
}

// lacks returns rights that the user lacks in one line with the remedy; "" for none.
func lacks(missing []right) string {
	if len(missing) == 0 {
		return ""
	}
	var names []string
	for _, r := range missing {
		names = append(names, r.String())
	}
	return "the user of evictd-kube may not " + strings.Join(names, ", ") + ": bind the ClusterRole of deploy/kubernetes to it"
}

// unbound returns why the policies of deploy/kubernetes deny a service account all writes: its token does not name the
// node. A SelfSubjectAccessReview does not ask policies.
func (c *client) unbound(ctx context.Context, node string) (string, error) {
	body, err := c.create(ctx, &selfReview{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}, "/apis/authentication.k8s.io/v1/selfsubjectreviews")
	if err != nil {
		return "", err
	}
	var answer selfReview
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", fmt.Errorf("answer to a SelfSubjectReview: %w", err)
	}
	user := answer.Status.UserInfo
	of := user.Extra[nodeNameKey]
	if !strings.HasPrefix(user.Username, "system:serviceaccount:") || slices.Equal(of, []string{node}) {
		return "", nil
	}
	bound := "is not bound to a node"
	if len(of) > 0 {
		bound = fmt.Sprintf("is bound to the node %.60q, not to %q", of[0], node)
	}
	return oneLine(fmt.Sprintf("the token of %.120q %s, so the policies of deploy/kubernetes deny its writes: use one of a pod of this node, or one that is bound to this Node", user.Username, bound)), nil
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
	question.Spec.ResourceAttributes = resourceAttributes{Verb: r.verb, Resource: r.resource, Subresource: r.subresource}
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
	if err == nil {
		err = r.checkNodeRights(ctx, c.client)
	}
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
		if !c.renew(reason) && r.checkDelay == 0 {
			r.log.Warn("could not find out which rights evictd-kube has; trying again", "error", reason)
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
	missing, err := c.cannotReport(ctx, r.node)
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
	interval := r.untilCheck(&r.missingSince, missing != "", now)
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

// untilCheck returns the time until the rights are checked again, and keeps since when some are
// missing.
func (r *Reporter) untilCheck(since *time.Time, missing bool, now time.Time) time.Duration {
	switch {
	case !missing:
		*since = time.Time{}
		return checkInterval
	case since.IsZero():
		*since = now
	}
	return min(max(r.ForbiddenDelay, now.Sub(*since)), checkInterval) // doubles the time without them
}

// checkNodeRights finds out which requests about the Node the user may make, after checkRights.
func (r *Reporter) checkNodeRights(ctx context.Context, c *client) error {
	missing, err := c.missingForNode(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setNodeRights(missing)
	now := time.Now()
	if at := now.Add(r.untilCheck(&r.nodes.lacksSince, len(missing) > 0, now)); at.Before(r.checkAfter) {
		r.checkAfter = at
	}
	return nil
}

// setNodeRights records which requests about the Node the user may not make.
func (r *Reporter) setNodeRights(missing map[nodeStep]right) {
	var list []right
	for _, step := range []nodeStep{writeTaints, writeConditions} {
		if m, ok := missing[step]; ok {
			list = append(list, m)
		}
	}
	why := lacks(list)
	for step := range nodeRights {
		p := &r.nodes.parts[step]
		_, lacking := missing[step]
		switch {
		case lacking:
			p.missing = why
		case p.missing != "": // and what was refused is not any more
			*p = nodePart{}
		}
	}
	if why != "" && why != r.nodes.lacks {
		r.log.Info("conditions and taints of the Node can't be written; evictions go on without them", "node", r.node, "reason", why)
	}
	r.nodes.lacks = why
}

// recheckRights causes a check of the rights after a 403, but not each time: a check may not see
// the cause.
func (r *Reporter) recheckRights(now time.Time) {
	if r.missingSince.IsZero() && !now.Before(r.forbiddenCheckAfter) {
		r.checkAfter, r.forbiddenCheckAfter = now, now.Add(r.ForbiddenDelay)
	}
}
