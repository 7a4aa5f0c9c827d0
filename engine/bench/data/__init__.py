"""One data process under the traffic of many replicas.

saturation  tokens a second, memory and bytes of its log, and where they end
traffic     that traffic
decisions   the time of one decision, for 10 replicas or 100,000
book        its words
"""
