package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/evictd/evictd/agent/kube"
)

const (
	// configzInterval is the time between two reads of the kubelet's configuration. A kubelet reads
	// its own only when it starts, of which evictd tells.
	configzInterval = 5 * time.Minute
	// The back-off after failures. A kubelet listens some seconds after its start.
	firstConfigzBackoff, longestConfigzBackoff = time.Second, time.Minute
	// configzTimeout bounds one read. The kubelet asks the API server who may read.
	configzTimeout = 15 * time.Second
	// maxConfigz and maxConfigzHeader bound the answer, in bytes.
	maxConfigz, maxConfigzHeader = 1 << 20, 16 << 10
)

// kubeletAnswers takes the kubelet's configuration. [kube.Feed] implements it.
type kubeletAnswers interface {
	ReportKubelet(c *kube.KubeletConfiguration)
}

// Configz reads the kubelet's configuration from the kubelet itself, so that evictd-kube does not
// need the right to everything that the kubelet serves (nodes/proxy). It implements
// [kube.KubeletReader].
type Configz struct {
	node    string
	answers kubeletAnswers
	log     *slog.Logger
	wake    chan struct{}

	mu           sync.Mutex
	connection   *connection // nil before the first
	asked        bool        // evictd has asked at least once
	certificates string      // of the kubelet, from evictd (PEM)
}

// NewConfigz returns a Configz for the kubelet of a node. Its answers go to a [kube.Feed].
func NewConfigz(node string, answers kubeletAnswers, log *slog.Logger) *Configz {
	return &Configz{node: node, answers: answers, log: log, wake: make(chan struct{}, 1)}
}

// ReadKubelet implements kube.KubeletReader.
func (z *Configz) ReadKubelet(r *kube.ReadKubelet) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked, z.certificates = true, r.Certificates
	z.notify()
}

// connected makes c the connection for all further reads.
func (z *Configz) connected(c *client, reload func(error)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.connection = &connection{c, reload}
	z.notify()
}

func (z *Configz) notify() {
	select {
	case z.wake <- struct{}{}:
	default:
	}
}

// Run reads the configuration when evictd asks for it and every configzInterval, until ctx ends.
func (z *Configz) Run(ctx context.Context) {
	backoff, failing := firstConfigzBackoff, ""
	timer := time.NewTimer(configzInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-z.wake:
			backoff = firstConfigzBackoff
		case <-timer.C:
		}
		z.mu.Lock()
		c, asked, certificates := z.connection, z.asked, z.certificates
		z.mu.Unlock()
		if c == nil || !asked {
			continue
		}
		answer, err := c.readKubelet(ctx, z.node, certificates)
		if ctx.Err() != nil {
			return
		}
		wait := configzInterval
		if err != nil {
			c.renew(err)
			text := oneLine(err.Error())
			if text != failing {
				z.log.Warn("could not read the kubelet's configuration; evictd uses the last known one", "error", text)
			}
			failing = text
			answer = &kube.KubeletConfiguration{Error: text}
			wait, backoff = backoff/2+rand.N(backoff/2), min(2*backoff, longestConfigzBackoff)
		} else {
			if failing != "" {
				z.log.Info("kubelet's configuration read")
			}
			backoff, failing = firstConfigzBackoff, ""
		}
		z.answers.ReportKubelet(answer)
		timer.Reset(wait)
	}
}

// readKubelet reads the configuration of the node's kubelet. Its errors have the remedy.
func (c *client) readKubelet(ctx context.Context, node, certificates string) (*kube.KubeletConfiguration, error) {
	ctx, cancel := context.WithTimeout(ctx, configzTimeout)
	defer cancel()
	n := &corev1.Node{}
	if err := c.rest.Get().MaxRetries(0).Resource("nodes").Name(node).Do(ctx).Into(n); err != nil {
		return nil, fmt.Errorf("address of the kubelet: %w", c.files.explain(err))
	}
	address, err := kubeletAddress(n)
	if err != nil {
		return nil, err
	}
	body, err := c.getConfigz(ctx, &kubeletIdentity{node: node, address: address, certificates: certificates})
	if err != nil {
		return nil, err
	}
	return parseConfigz(body)
}

// getConfigz reads /configz of a kubelet. It sends the credentials only to the kubelet of that
// identity. It follows nothing and uses no proxy.
func (c *client) getConfigz(ctx context.Context, kubelet *kubeletIdentity) ([]byte, error) {
	tlsConfig, err := kubelet.tlsConfig(c.config)
	if err != nil {
		return nil, err
	}
	base := &http.Transport{
		TLSClientConfig: tlsConfig, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxConfigzHeader,
	}
	defer base.CloseIdleConnections()
	transport, err := rest.HTTPWrappersForConfig(c.config, base)
	if err != nil {
		return nil, fmt.Errorf("credentials for the kubelet: %w: correct the %s", err, c.files.credentials())
	}
	url := "https://" + kubelet.address.String() + "/configz"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("address of the kubelet: %w", err)
	}
	// RoundTrip, unlike an http.Client, follows no redirect.
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return nil, kubelet.explain(err)
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return nil, fmt.Errorf("%s refused the credentials (401): enable authentication.webhook in the kubelet's configuration, or renew the %s", url, c.files.credentials())
	case http.StatusForbidden:
		return nil, fmt.Errorf("%s refused the request (403): the user of evictd-kube may not get nodes/configz: bind the ClusterRole of deploy/kubernetes to it", url)
	default:
		return nil, fmt.Errorf("%s answered %d: is enableDebuggingHandlers false in the kubelet's configuration?", url, answer.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxConfigz+1))
	if err != nil {
		return nil, kubelet.explain(err)
	}
	if len(body) > maxConfigz {
		return nil, fmt.Errorf("%s answered more than %d bytes", url, maxConfigz)
	}
	return body, nil
}

// parseConfigz decodes what concerns evictd of an answer of the kubelet:
//
//	{"kubeletconfig":{"enableServer":true,"evictionHard":{"memory.available":"100Mi",…},…}}
//
// Other keys are ignored. A wrong type of a known one is an error.
func parseConfigz(body []byte) (*kube.KubeletConfiguration, error) {
	var answer struct {
		Configuration *configuration `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("answer of the kubelet: %w: does this evictd-kube know the kubelet's version?", err)
	}
	if answer.Configuration == nil {
		return nil, errors.New("answer of the kubelet has no kubeletconfig: does this evictd-kube know the kubelet's version?")
	}
	c := kube.KubeletConfiguration(*answer.Configuration)
	c.Error = ""
	return &c, nil
}

// configuration is a KubeletConfiguration as the kubelet names its fields, which are the same.
type configuration kube.KubeletConfiguration
