package control

import (
	"context"
	"net/http"
	"time"
)

// ConfigChange is a field whose value has changed. Before or After is empty if the
// field was or is absent.
type ConfigChange struct {
	Field  string `json:"field"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// commandTimeout bounds a command: a reload, or how long the shutdown driver takes to accept
// one. It is shorter than a client waits, so that the client gets the reason of a failure.
const commandTimeout = responseTimeout - time.Second

// addReload adds the command that reads the configuration again. Its response is
// the configuration in force, or the errors in the new one.
func (s *Server) addReload(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), commandTimeout)
		defer cancel()
		if err := s.source.Reload(ctx); err != nil {
			s.fail(w, http.StatusConflict, err.Error())
			return
		}
		s.respond(w, http.StatusOK, s.source.Status().Config)
	})
}

// Reload makes evictd read its configuration again, and returns the one in force.
func (c *Client) Reload(ctx context.Context) (Config, error) {
	return request[Config](ctx, c, http.MethodPost, "/v1/reload")
}
