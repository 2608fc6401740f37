package control

import (
	"context"
	"net/http"
	"time"

	"github.com/evictd/evictd/agent/shutdown"
)

// Shutdown is the plan or the progress of a graceful node shutdown.
type Shutdown struct {
	At time.Time `json:"at"`
	// Phase is idle, stopping or ended. Manual reports whether an operator began
	// the shutdown.
	Phase  string `json:"phase"`
	Manual bool   `json:"manual"`
	// Began and Ended are the times of the last shutdown of this boot. Began is
	// absent if there was none, and Ended is also absent while the phase is stopping.
	// Canceled reports whether that shutdown was canceled.
	Began    time.Time `json:"began,omitzero"`
	Ended    time.Time `json:"over,omitzero"`
	Canceled bool      `json:"calledOff"`

	// Why lists every reason why evictd stops no pods; it is empty if evictd does.
	// DryRun reports whether evictd only reports the pods that it would stop.
	Why    List[string] `json:"why"`
	DryRun bool         `json:"dryRun"`

	// Stopped, Running and WouldStop count the pods of a shutdown that has begun:
	// those that are gone, those that are not, and those that dry run did not
	// stop. A pod is counted once.
	Stopped   int `json:"stopped"`
	Running   int `json:"running"`
	WouldStop int `json:"wouldStop"`

	// NeedsSeconds is how long a shutdown must be delayed. LimitSeconds is how long
	// logind allows to delay it, null if unknown. Inhibited reports whether evictd has
	// the inhibitor lock.
	NeedsSeconds float64  `json:"needsSeconds"`
	LimitSeconds *float64 `json:"limitSeconds"`
	Inhibited    bool     `json:"held"`
	// LogindError is an error of logind, or a problem with its limit.
	LogindError string `json:"logindError,omitempty"`

	// Groups are the groups in force, in the order in which they stop.
	Groups List[ShutdownGroup] `json:"groups"`
	// Current is the index of the group that stops now, null if none does.
	Current *int `json:"current"`

	Last shutdown.LastBoot `json:"last"`
}

// ShutdownGroup is a group and its pods.
type ShutdownGroup struct {
	Priority    int32             `json:"priority"` // the lowest
	TimeSeconds float64           `json:"timeSeconds"`
	Pods        List[ShutdownPod] `json:"pods"` // the first wave, then the second
}

// ShutdownPod is a pod of a group.
type ShutdownPod struct {
	Pod string `json:"pod"`
	// Last reports whether the pod is in its group's second wave, which stops after
	// the other pods of the group.
	Last bool `json:"last"`
	// Status is planned, or, once a shutdown has begun, waiting, asked, killed,
	// gone or pretended.
	Status string `json:"status"`
	// GraceSeconds is the grace period: the longest possible one in a plan, the
	// actual one in a shutdown.
	GraceSeconds float64 `json:"graceSeconds"`
	// Refused reports whether the pod started during the shutdown.
	Refused bool `json:"refused,omitempty"`
}

// addShutdown adds the handlers about a shutdown.
func (s *Server) addShutdown(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/shutdown", func(w http.ResponseWriter, _ *http.Request) {
		s.respond(w, http.StatusOK, s.source.Shutdown())
	})
	command := func(pattern string, do func(context.Context) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), commandTimeout)
			defer cancel()
			if err := do(ctx); err != nil {
				s.fail(w, http.StatusConflict, err.Error())
				return
			}
			s.respond(w, http.StatusOK, s.source.Shutdown())
		})
	}
	command("POST /v1/shutdown/begin", s.source.BeginShutdown)
	command("POST /v1/shutdown/cancel", s.source.CancelShutdown)
}

// Shutdown returns the plan or the progress of a shutdown.
func (c *Client) Shutdown(ctx context.Context) (Shutdown, error) {
	return request[Shutdown](ctx, c, http.MethodGet, "/v1/shutdown")
}

// BeginShutdown makes evictd stop the pods as in a node shutdown.
func (c *Client) BeginShutdown(ctx context.Context) (Shutdown, error) {
	return request[Shutdown](ctx, c, http.MethodPost, "/v1/shutdown/begin")
}

// CancelShutdown makes evictd stop no further pods.
func (c *Client) CancelShutdown(ctx context.Context) (Shutdown, error) {
	return request[Shutdown](ctx, c, http.MethodPost, "/v1/shutdown/cancel")
}
